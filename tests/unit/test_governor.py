"""The governor with a real store and real connections; battery and card are fakes behind the
interface of the real sensors."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio
import trio.testing
from net_support import ANY_PORT, ECHO, echo, in_trio, until

from echo_node import governor as governor_module
from echo_node.clocks import SLEPT_S, SleepWatch
from echo_node.events import Event, Note, Paused, Resumed
from echo_node.gate import Gate
from echo_node.governor import Governed, Governor
from echo_node.limits.book import Book
from echo_node.limits.rules import Readings
from echo_node.limits.settings import Limits
from echo_node.notice import Notice
from echo_node.sensors.computer import Own
from echo_p2p.artifact.store import Store
from echo_p2p.errors import ConfigError
from echo_p2p.identity import Identity
from echo_p2p.net.host import Peer, open_peer


@dataclass
class FakeSensors:
    """A computer whose battery, card and memory say what the test wants."""

    readings: Readings = field(default_factory=Readings)
    own: Own = field(default_factory=Own)

    def read(self, limits: Limits, ours: Collection[int]) -> tuple[Readings, Own]:
        assert ours
        return self.readings, self.own


@dataclass
class FakeWork:
    """The node's work and its engine, and what was asked of them."""

    notice: Notice
    busy: bool = False
    suspended: bool = False
    asked: list[str] = field(default_factory=list)
    governed: tuple[int, int, int] = (0, 0, 0)

    def put_down(self) -> None:
        self.asked.append("put down")

    async def reconnect(self) -> None:
        self.asked.append("reconnect")

    async def suspend(self) -> None:
        await trio.lowlevel.checkpoint()
        self.suspended = True
        self.asked.append("suspend")

    def resume(self) -> None:
        self.suspended = False

    def govern(self, *, threads: int, nice: int, duty: int) -> None:
        self.governed = (threads, nice, duty)

    def finish(self) -> None:
        self.busy = False
        self.notice.tell()


@dataclass
class Governing:
    governor: Governor
    sensors: FakeSensors
    work: FakeWork
    peer: Peer
    store: Store
    gate: Gate
    events: list[Event]

    def of(self, kind: type[Event]) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]


@asynccontextmanager
async def governing(
    folder: Path, *, on: dict[str, str] | None = None, sensors: FakeSensors | None = None
) -> AsyncIterator[Governing]:
    notice = Notice()
    work, gate, events = FakeWork(notice), Gate(notice), []
    sensors = sensors or FakeSensors()
    async with open_peer(Identity.create(), [ANY_PORT]) as peer:
        peer.serve(ECHO, echo, max_request=1 << 20, deadline_s=30)
        with Store(folder / "store", cap_bytes=None) as store:
            governed = Governed(gate, peer, store, work, work, notice, events.append)
            governor = Governor(
                Book().changed(on or {}, "flag"),
                sensors,
                governed,
                config=folder / "node.toml",
                data_count=folder / "data.json",
            )
            async with trio.open_nursery() as nursery:
                nursery.start_soon(governor.run)
                await governor.ready.wait()
                yield Governing(governor, sensors, work, peer, store, gate, events)
                nursery.cancel_scope.cancel()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(governor_module, "TICK_S", 0.02)


@in_trio
async def test_on_battery_from_the_start_nothing_begins(tmp_path):
    async with governing(tmp_path, sensors=FakeSensors(Readings(on_battery=True))) as now:
        assert not now.gate.is_open
        assert now.peer.withholds
        await until(lambda: now.work.suspended)
        assert [event.codes for event in now.of(Paused)] == [["battery"]]
        now.sensors.readings = Readings(on_battery=False)
        await until(lambda: now.gate.is_open)
        assert not now.work.suspended
        assert not now.peer.withholds
        assert len(now.of(Resumed)) == 1


@in_trio
async def test_running_work_is_finished_if_it_is_short(tmp_path):
    async with governing(tmp_path) as now:
        now.work.busy = True
        now.governor.pause(None)
        assert now.work.asked == ["put down"]
        for _ in range(3):  # ticks
            await trio.sleep(0.03)
        assert not now.work.suspended
        now.work.finish()
        await until(lambda: now.work.suspended)


@in_trio
async def test_running_work_that_takes_long_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(governor_module, "GRACE_S", 0.05)
    async with governing(tmp_path) as now:
        now.work.busy = True
        now.governor.pause(None)
        await until(lambda: now.work.suspended)


@in_trio
async def test_where_somebody_needs_the_machine_nothing_is_waited_for(tmp_path):
    async with governing(tmp_path) as now:
        now.work.busy = True
        now.governor.pause(None)
        now.sensors.readings = Readings(gpu_programs=("game",))
        await until(lambda: now.work.suspended)
        assert now.of(Paused)[-1].codes == ["asked", "gpu_in_use"]


@in_trio
async def test_going_on_before_the_grace_is_over_ends_no_engine(tmp_path):
    async with governing(tmp_path) as now:
        now.work.busy = True
        now.governor.pause(None)
        now.governor.resume()
        now.work.finish()
        for _ in range(3):
            await trio.sleep(0.03)
        assert now.work.asked == ["put down"]
        assert now.gate.is_open


@in_trio
async def test_a_pause_for_a_time_ends_by_itself_and_says_until_when(tmp_path):
    async with governing(tmp_path) as now:
        now.governor.pause(0.3)
        paused = now.of(Paused)[0]
        assert paused.until is not None
        assert abs(paused.until - time.time()) < 30
        await until(lambda: now.gate.is_open)


@in_trio
async def test_the_wall_clock_does_not_lengthen_a_pause(tmp_path, monkeypatch):
    async with governing(tmp_path) as now:
        now.governor.pause(0.3)
        really = time.time
        monkeypatch.setattr(governor_module.time, "time", lambda: really() - 86_400)
        await until(lambda: now.gate.is_open)


@in_trio
async def test_resuming_does_not_overrule_a_limit(tmp_path):
    async with governing(tmp_path, sensors=FakeSensors(Readings(on_battery=True))) as now:
        now.governor.pause(60)
        now.governor.resume()
        assert not now.gate.is_open
        assert now.governor.decision.codes == {"battery"}
        await now.governor.change({"on_battery": "yes"}, keep=False)
        assert now.gate.is_open


@in_trio
async def test_changed_limits_hold_at_once_and_are_kept_if_asked(tmp_path):
    async with governing(tmp_path, on={"upload": "2mbit"}) as now:
        assert now.peer.limits.upload == 250_000
        assert now.store.cap_bytes is not None
        await now.governor.change({"upload": "4mbit", "disk": "1GB"}, keep=False)
        assert (now.peer.limits.upload, now.store.cap_bytes) == (500_000, 10**9)
        assert not (tmp_path / "node.toml").exists()
        await now.governor.change({"download": "8mbit"}, keep=True)
        assert Book.read(tmp_path / "node.toml").limits.download == "8mbit"
        with pytest.raises(ConfigError, match="not a rate"):
            await now.governor.change({"upload": "fast", "disk": "2GB"}, keep=True)
        assert now.store.cap_bytes == 10**9


@in_trio
async def test_threads_and_priority_are_those_of_the_next_process(tmp_path):
    async with governing(tmp_path, on={"cpu_threads": "3"}) as now:
        assert now.work.governed == (3, 10, 100)
        await now.governor.change({"gpu_duty": "40"}, keep=False)
        assert now.work.governed == (3, 10, 40)
        assert now.gate.is_open
        assert now.work.asked == []
        now.work.busy = True
        await now.governor.change({"cpu_threads": "1", "priority": "idle"}, keep=False)
        assert now.work.governed == (1, 19, 40)
        assert not now.gate.is_open
        now.work.finish()
        await until(lambda: now.gate.is_open)
        assert now.work.asked == ["put down", "suspend"]
        now.governor.pause(None)
        await until(lambda: now.work.suspended)
        await now.governor.change({"cpu_threads": "2"}, keep=False)
        assert now.governor.decision.codes == {"asked"}
        now.governor.resume()
        assert now.gate.is_open


@in_trio
async def test_disk_space_is_left_to_others(tmp_path):
    async with governing(tmp_path, on={"disk_left_free": "900TB"}) as now:
        assert now.store.cap_bytes == 0


@in_trio
async def test_an_engine_that_takes_too_much_memory_is_ended_for_a_while(tmp_path, monkeypatch):
    monkeypatch.setattr(governor_module, "TOO_MUCH_S", 0.2)
    async with governing(tmp_path, on={"ram": "1GB"}) as now:
        now.work.busy = True
        now.sensors.own = Own(ram=10**9 + 1)
        await until(lambda: now.work.suspended)
        assert "1.0 GB of memory, 1.0 GB allowed" in now.of(Paused)[0].message
        assert now.of(Paused)[0].until is not None
        now.sensors.own = Own(ram=10**8)
        await until(lambda: now.gate.is_open)  # it is tried again
        now.sensors.own = Own(ram=10**8, gpu_memory=9, gpu_total=10)
        await until(lambda: now.governor.decision.codes == {"gpu_memory"})
        now.sensors.own = Own(ram=2 * 10**9)
        await now.governor.change({"ram": "3GB", "gpu_memory": "95%"}, keep=False)
        assert now.gate.is_open


@in_trio
async def test_data_is_counted_by_real_transfers_and_over_restarts(tmp_path):
    async with governing(tmp_path, on={"data_per_day": "1MB"}) as now:
        async with open_peer(Identity.create(), []) as other:
            await other.connect(now.peer.addresses, deadline_s=30)
            for _ in range(6):
                await other.request(
                    now.peer.peer_id, ECHO, bytes(100_000), max_reply=1 << 20, deadline_s=30
                )
        await until(lambda: not now.gate.is_open)
        assert now.governor.decision.codes == {"data_day"}
        assert now.governor.decision.until is not None
        assert 1.2e6 < now.governor.readings.data_today < 1.4e6
    async with governing(tmp_path, on={"data_per_day": "1MB"}) as again:
        assert again.governor.decision.codes == {"data_day"}
        await again.governor.change({"data_per_day": "unlimited"}, keep=False)
        assert again.gate.is_open
    async with governing(tmp_path, on={"data_per_month": "1MB"}) as again:
        assert again.governor.decision.codes == {"data_month"}


@in_trio
async def test_after_sleep_the_connection_is_begun_anew(tmp_path, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(governor_module, "awake_or_asleep", lambda: clock[0])
    async with governing(tmp_path) as now:
        clock[0] += 3600
        await until(lambda: "reconnect" in now.work.asked)
        assert "stood still for 1 h" in now.of(Note)[0].message


def test_sleep_is_told_from_a_busy_machine() -> None:
    watch = SleepWatch(0.0, 2.0)
    assert watch.slept_s(2.0) == 0
    assert watch.slept_s(4.0 + SLEPT_S / 2) == 0
    assert watch.slept_s(606.0 + SLEPT_S / 2) == 600
    assert watch.slept_s(608.0 + SLEPT_S / 2) == 0


@in_trio
async def test_what_is_behind_the_gate_is_cancelled_and_begun_anew() -> None:
    gate = Gate(Notice())
    begun: list[Callable[[], None]] = []

    async def work() -> str:
        finish = trio.Event()
        begun.append(finish.set)
        await finish.wait()
        return f"try {len(begun)}"

    results: list[str] = []
    gate.set(is_open=False)
    async with trio.open_nursery() as nursery:

        async def keep() -> None:
            results.append(await gate.behind(work))

        nursery.start_soon(keep)
        await trio.testing.wait_all_tasks_blocked()
        assert not begun
        gate.set(is_open=True)
        await until(lambda: len(begun) == 1)
        gate.set(is_open=False)
        await trio.testing.wait_all_tasks_blocked()
        gate.set(is_open=True)
        await until(lambda: len(begun) == 2)
        begun[1]()
    assert results == ["try 2"]
