"""Bad days of a whole `join`: it goes on by itself, or ends, with words that a person can act on.

All is real but for the engine's process, which answers with anything (`garbage_engine`), so that a
card can be lost where there is none, and the sensors of the computer.
"""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from sys import path as import_path

import pytest
import trio
from engine_models import make_adapter, make_base
from net_support import ANY_PORT, in_trio
from small_hub import RUN_ID, SmallHub
from test_auto_update import an_updater, publish, served

from echo_node import door, session, start, update
from echo_node import governor as governor_module
from echo_node import hub as hub_module
from echo_node.console import describe
from echo_node.engines import remote
from echo_node.events import Event, Joined, Note, Step, Trouble
from echo_node.limits.book import Book
from echo_node.limits.rules import Readings
from echo_node.limits.settings import Limits
from echo_node.paths import NodeFolder
from echo_node.sensors.computer import Own
from echo_node.start import JoinOptions
from echo_node.update import Updater
from echo_p2p.artifact.store import Store
from echo_p2p.bootstrap import render_bootstrap
from echo_p2p.errors import DiskFullError, EngineError, PortError, lone_cause
from echo_p2p.net.addresses import parse

DAY_S = 86_400.0


class Calm:
    """A computer that nobody uses."""

    def read(self, limits: Limits, ours: Collection[int]) -> tuple[Readings, Own]:
        return Readings(), Own()


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def adapters(base: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return [make_adapter(base, folder / str(seed), seed) for seed in range(2)]


@pytest.fixture
def hub(base: Path, adapters: list[Path], tmp_path: Path) -> SmallHub:
    hub = SmallHub(Store(tmp_path / "hub-store", cap_bytes=None), base)
    hub.publish(0, adapters[0])
    return hub


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(hub_module, "LEASE_WAIT_S", 0.3)
    monkeypatch.setattr(session, "reconnect_delay_s", lambda failures, chance: 0.1)
    monkeypatch.setattr(door, "LOOK_S", 0.5)
    monkeypatch.setattr(remote, "ENGINE_MODULE", "garbage_engine")
    monkeypatch.setattr(remote, "restart_delay_s", lambda failures: 0.0)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), *import_path]))
    monkeypatch.setenv("GARBAGE", str(tmp_path / "garbage"))
    engine_goes_wrong(tmp_path)


def engine_goes_wrong(tmp_path: Path, *ways: str) -> None:
    """What each process of the engine does wrong; the next ones are in order."""
    (tmp_path / "garbage").write_text("\n".join(ways))


@dataclass
class Joining:
    """A node, and what it said."""

    hub: SmallHub
    events: list[Event] = field(default_factory=list)
    error: BaseException | None = None
    over: bool = False

    def of(self, kind: type[Event]) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def said(self) -> str:
        return "\n".join(map(describe, self.events))

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait; fails if the node ends before."""
        await self.hub.changed.until(lambda: condition() or self.over)
        assert condition(), (self.error, self.said)

    async def until_said(self, words: str) -> None:
        await self.until(lambda: words in self.said)

    async def until_answered(self, groups: int) -> None:
        await self.until(lambda: self.hub.answered() == groups)

    async def ends_with(self, kind: type[BaseException]) -> str:
        """Wait until it ended so; what a person reads then."""
        await self.hub.changed.until(lambda: self.over)
        error = self.error
        if isinstance(error, BaseExceptionGroup):
            error = lone_cause(error)
        assert isinstance(error, kind), (error, self.said)
        return str(error)


@asynccontextmanager
async def joining(
    hub: SmallHub,
    addresses: tuple[str, ...],
    home: Path,
    *,
    listen: str = ANY_PORT,
    updater: Updater | None = None,
) -> AsyncIterator[Joining]:
    """`echo-node join` in this process, until the block is left."""
    await trio.Path(home).mkdir(exist_ok=True)
    text = render_bootstrap(
        network="t", run_id=RUN_ID, hub_key=hub.identity.peer_id, addresses=(addresses * 3)[:3]
    )
    await trio.Path(home / "bootstrap.toml").write_text(text)
    options = JoinOptions(
        folder=NodeFolder(home),
        bootstrap=str(home / "bootstrap.toml"),
        listen=(listen,),
        book=Book().changed({"cpu_threads": "1", "priority": "normal"}, "flag"),
        config=home / "node.toml",
        updater=updater,
    )
    one = Joining(hub)

    def report(event: Event) -> None:
        one.events.append(event)
        hub.changed.tell()

    async def join() -> None:
        try:
            await start.join(options, report, sensors=Calm())
        except Exception as error:  # noqa: BLE001 - looked at by the test
            one.error = error
        finally:
            one.over = True
            hub.changed.tell()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(join)
        yield one
        nursery.cancel_scope.cancel()


def fixed_address(hub: SmallHub) -> tuple[str, tuple[str, ...]]:
    """An address that can be had twice: to listen on, and to dial."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"/ip4/127.0.0.1/tcp/{free.getsockname()[1]}"
    return address, (f"{address}/p2p/{hub.identity.peer_id}",)


def port_of(address: str) -> int:
    return parse(address).port


# --- the machine ----------------------------------------------------------------------------------


@in_trio
async def test_a_card_that_is_lost_is_said_and_a_new_process_goes_on(
    hub: SmallHub, tmp_path: Path
) -> None:
    engine_goes_wrong(tmp_path, "card", "card")
    async with (
        hub.on_the_network() as peer,
        joining(hub, peer.addresses, tmp_path / "home") as node,
    ):
        hub.order(2)
        await node.until_answered(2)
    lost = [describe(event) for event in node.of(Trouble)]
    assert len(lost) == 2
    assert "graphics card stopped working for the engine (CUDA error" in lost[0]
    assert "restart the computer, and update the card's driver" in lost[0]
    assert len(hub.hellos) == 1


@in_trio
async def test_a_card_that_does_not_come_back_ends_the_node(hub: SmallHub, tmp_path: Path) -> None:
    engine_goes_wrong(tmp_path, "card", *["no card"] * 10)
    async with (
        hub.on_the_network() as peer,
        joining(hub, peer.addresses, tmp_path / "home") as node,
    ):
        hub.order(1)
        said = await node.ends_with(EngineError)
    assert "failed 5 times in a row" in said
    assert "No CUDA GPUs are available" in said
    assert "engine.log" in said


@in_trio
async def test_a_laptop_that_slept_begins_a_new_session(
    hub: SmallHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asleep = 0.0
    monkeypatch.setattr(governor_module, "TICK_S", 0.1)
    monkeypatch.setattr(
        governor_module, "awake_or_asleep", lambda: time.clock_gettime(time.CLOCK_BOOTTIME) + asleep
    )
    async with (
        hub.on_the_network() as peer,
        joining(hub, peer.addresses, tmp_path / "home") as node,
    ):
        hub.order(1)
        await node.until_answered(1)
        asleep = 8 * 3600.0
        await node.until_said("stood still for 8 h")
        await node.until(lambda: len(hub.hellos) == 2)
        hub.order(1)
        await node.until_answered(2)


@in_trio
async def test_a_clock_that_is_off_by_a_day_is_said_and_the_hub_s_counts(
    hub: SmallHub, tmp_path: Path
) -> None:
    hub.clock = lambda: time.time() - DAY_S  # so ours is ahead, and every lease has expired by it
    async with (
        hub.on_the_network() as peer,
        joining(hub, peer.addresses, tmp_path / "home") as node,
    ):
        hub.order(2)
        await node.until_answered(2)
    notes = [describe(event) for event in node.of(Note)]
    (said,) = [note for note in notes if "clock" in note]
    assert "1 days ahead of the hub's" in said
    assert "Set it" in said


@in_trio
async def test_a_port_that_another_program_has(hub: SmallHub, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        listen = f"/ip4/127.0.0.1/tcp/{taken.getsockname()[1]}"
        _, nobody = fixed_address(hub)
        async with joining(hub, nobody, tmp_path / "home", listen=listen) as node:
            said = await node.ends_with(PortError)
    assert f"cannot listen on {listen}: address already in use." in said
    assert "no other program using the port?" in said
    assert [event.step for event in node.of(Step)] == ["reading the bootstrap file"]  # type: ignore[attr-defined]


@in_trio
async def test_a_signed_release_ends_a_node_in_order_so_that_it_can_be_installed(
    hub: SmallHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(update, "CHECK_EVERY_S", 0.2)
    (tmp_path / "releases").mkdir()
    with served(tmp_path / "releases") as source:
        updater = an_updater(tmp_path, source)
        async with (
            hub.on_the_network() as peer,
            joining(hub, peer.addresses, tmp_path / "home", updater=updater) as node,
        ):
            await node.until_said("No newer release was looked for")  # there is none at all yet
            hub.order(1)
            await node.until_answered(1)
            await trio.to_thread.run_sync(lambda: publish(tmp_path))
            await hub.changed.until(lambda: node.over)
    assert node.error is None
    assert "is signed and will be installed" in node.said
    assert updater.ready is not None
    assert hub.farewells == 1
    assert hub.answered() == len(hub.granted)


# --- the disk -------------------------------------------------------------------------------------


@dataclass
class Disk:
    """Has room for so many bytes of artifacts more, in all."""

    room: int

    def pwrite(self, descriptor: int, data: bytes, offset: int) -> int:
        if self.room < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.room -= len(data)
        return _pwrite(descriptor, data, offset)


_pwrite = os.pwrite


@in_trio
async def test_a_disk_that_fills_in_mid_download_ends_it_and_the_next_join_goes_on_from_there(
    hub: SmallHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(room=70_000)  # the base is larger than one chunk
    monkeypatch.setattr("echo_p2p.artifact.disk.os.pwrite", disk.pwrite)
    async with (
        hub.on_the_network() as peer,
        joining(hub, peer.addresses, tmp_path / "home") as node,
    ):
        said = await node.ends_with(DiskFullError)
        assert "o space left" in said
        assert "Free some disk space." in said
        disk.room = 1 << 30
        async with joining(hub, peer.addresses, tmp_path / "home") as node:
            hub.order(1)
            await node.until_answered(1)
        assert disk.room > 0


@in_trio
async def test_a_disk_that_fills_while_a_version_is_written(
    hub: SmallHub, adapters: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(room=1 << 30)
    monkeypatch.setattr("echo_p2p.artifact.disk.os.pwrite", disk.pwrite)
    async with (
        hub.on_the_network() as peer,
        joining(hub, peer.addresses, tmp_path / "home") as node,
    ):
        hub.order(1)
        await node.until_answered(1)
        hub.publish(1, adapters[1])
        disk.room = 0  # the hub has it on its own disk, and nobody has heard of it yet
        assert "Free some disk space." in await node.ends_with(DiskFullError)
        disk.room = 1 << 30
        async with joining(hub, peer.addresses, tmp_path / "home") as node:
            await node.until_said("version 1 is active")


# --- the network ----------------------------------------------------------------------------------


@in_trio
async def test_a_hub_that_is_gone_for_an_hour(
    hub: SmallHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a thousandth of the time: the pauses are the real ones, divided."""
    waited, asked = 0.0, 0

    def delay(failures: int, chance: float) -> float:
        nonlocal waited
        waited += (pause := REAL_DELAY(failures, chance))
        return pause / 1000

    async def directory(entry: object) -> tuple[str, ...]:
        nonlocal asked
        asked += 1
        return ()

    monkeypatch.setattr(session, "reconnect_delay_s", delay)
    monkeypatch.setattr(session, "ask_directory", directory)
    address, dialled = fixed_address(hub)
    async with joining(hub, dialled, tmp_path / "home") as node:
        async with hub.on_the_network(address):
            hub.order(1)
            await node.until_answered(1)
        await node.until(lambda: waited >= 3600)
        tries = len(node.of(Trouble))
        async with hub.on_the_network(address):
            hub.order(2)
            await node.until_answered(3)
    assert 3600 / 90 < tries < 3600 / 30  # it neither hammers nor sleeps through the return
    assert 0 < asked < tries / 2
    assert len(node.of(Joined)) == 2
    last = describe(node.of(Trouble)[-1])
    assert "cannot be reached at" in last
    assert "Trying again in" in last
    assert "echo-node doctor hub" in last


REAL_DELAY = session.reconnect_delay_s


async def log_in_page(task_status: trio.TaskStatus[None], port: int) -> None:
    async def serve(stream: trio.SocketStream) -> None:
        await stream.receive_some(100)
        await stream.send_all(b"HTTP/1.1 302 Found\r\nLocation: http://login.example/\r\n\r\n")

    await trio.serve_tcp(serve, port, host="127.0.0.1", task_status=task_status)


@in_trio
async def test_a_log_in_page_is_said_and_once_it_is_done_the_node_goes_on(
    hub: SmallHub, tmp_path: Path
) -> None:
    address, dialled = fixed_address(hub)
    async with joining(hub, dialled, tmp_path / "home") as node:
        async with trio.open_nursery() as nursery:
            serve = partial(log_in_page, port=port_of(address))
            await nursery.start(lambda task_status: serve(task_status))
            await node.until_said("a web page answers in its place")
            nursery.cancel_scope.cancel()
        assert "Open a browser, log in, and the node goes on." in node.said
        async with hub.on_the_network(address):
            hub.order(1)
            await node.until_answered(1)


@in_trio
async def test_names_that_cannot_be_looked_up_for_a_while(
    hub: SmallHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, _ = fixed_address(hub)
    named = f"/dns4/hub.example/tcp/{port_of(address)}/p2p/{hub.identity.peer_id}"
    down = True
    real = trio.socket.getaddrinfo

    async def look_up(host: str, *rest: object) -> object:
        if down:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return await real("127.0.0.1", *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(trio.socket, "getaddrinfo", look_up)
    async with joining(hub, (named,), tmp_path / "home") as node:
        await node.until_said(
            "the name hub.example cannot be resolved: Temporary failure in name resolution"
        )
        assert "echo-node doctor hub" in node.said
        down = False
        async with hub.on_the_network(address):
            hub.order(1)
            await node.until_answered(1)


class Way:
    """Between a node and its hub. When the network changes, old connections carry nothing more."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._open: list[trio.CancelScope] = []

    def change(self) -> None:
        """Another network: nobody hears of it, packets just do not come any more."""
        for scope in self._open:
            scope.cancel()

    async def carry(self, near: trio.SocketStream) -> None:
        far = await trio.open_tcp_stream("127.0.0.1", self._port)
        with trio.CancelScope() as scope:
            self._open.append(scope)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_pass_on, near, far)
                nursery.start_soon(_pass_on, far, near)
        if scope.cancelled_caught:
            await trio.sleep_forever()  # neither end is closed


async def _pass_on(source: trio.SocketStream, sink: trio.SocketStream) -> None:
    with suppress(trio.BrokenResourceError):
        async for data in source:
            await sink.send_all(data)


@in_trio
async def test_another_network_under_a_running_node(
    hub: SmallHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "SILENCE_S", 1.0)
    address, _ = fixed_address(hub)
    way = Way(port_of(address))
    async with hub.on_the_network(address), trio.open_nursery() as nursery:
        serve = partial(trio.serve_tcp, way.carry, 0, host="127.0.0.1")
        (listener,) = await nursery.start(serve)
        port = listener.socket.getsockname()[1]
        through = f"/ip4/127.0.0.1/tcp/{port}/p2p/{hub.identity.peer_id}"
        async with joining(hub, (through,), tmp_path / "home") as node:
            hub.order(1)
            await node.until_answered(1)
            way.change()
            await node.until(lambda: len(hub.hellos) == 2)
            hub.order(1)
            await node.until_answered(2)
        nursery.cancel_scope.cancel()
    assert len(node.of(Trouble)) == 1
    assert "Trying again" in node.said
