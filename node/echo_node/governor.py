"""Keeps a node within what its volunteer allows: reads sensors, decides by `limits.rules`, acts.

Promises: every `TICK_S` the readings are new and the decision is too. On a pause no lease is taken
and nothing is fetched or given to others; running work gets `GRACE_S` to be done, or none where
somebody needs the machine now, and what is not done goes back to the hub; then the engine's process
is ended, and its memory is free. The session with the hub stays, so going on needs no new one. A
limit that was changed holds from then on, without a restart of the node. A pause for a time is
that long by a clock that nobody sets; weekly hours and days of data are the wall's.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import trio

from echo_node.clocks import SleepWatch, awake_or_asleep
from echo_node.events import Event, Note, Paused, Resumed
from echo_node.gate import Gate
from echo_node.limits.amounts import format_duration, format_size, parse_amount, parse_size
from echo_node.limits.book import Book, save
from echo_node.limits.data import DataCount
from echo_node.limits.rules import RUNS, Code, Decision, Hold, Readings, decide
from echo_node.limits.settings import Limits
from echo_node.meter import Meter
from echo_node.notice import Notice
from echo_node.sensors.computer import Own, Sensors
from echo_node.sensors.look import look
from echo_p2p.nursery import open_nursery
from echo_p2p.rates import Limits as Rates
from echo_p2p.rates import parse_rate

if TYPE_CHECKING:  # both are large, and limits are looked at before they are loaded
    from echo_p2p.artifact.store import Store
    from echo_p2p.net.host import Peer

TICK_S = 2.0
GRACE_S = 10.0
"""How long running work may go on after a pause began, if nobody needs the machine at once."""
SAVE_EVERY_S = 30.0
TOO_MUCH_S = 600.0
"""First pause of an engine that took too much memory; each next one is twice as long."""
MOST_TOO_MUCH_S = 6 * 3600.0


class Engine(Protocol):
    """What the governor asks of the engine."""

    async def suspend(self) -> None: ...

    def resume(self) -> None: ...

    def govern(self, *, threads: int, nice: int, duty: int) -> None: ...


class Work(Protocol):
    """What the governor asks of the node's work."""

    @property
    def busy(self) -> bool: ...

    def put_down(self) -> None:
        """Give back what is held and not begun."""
        ...

    async def reconnect(self) -> None:
        """The connection is dead, whether it knows or not."""
        ...


@dataclass(frozen=True)
class Governed:
    """What a governor acts on."""

    gate: Gate
    peer: Peer
    store: Store
    engine: Engine
    work: Work
    notice: Notice
    report: Callable[[Event], None]


class Governor:
    """Made once a node; `run` in a task.

    Args:
        config: the `node.toml` that changes are saved to.
        data_count: where data is counted over restarts.
    """

    def __init__(
        self, book: Book, sensors: Sensors, governed: Governed, *, config: Path, data_count: Path
    ) -> None:
        self.book = book
        self.config = config
        self.decision: Decision = RUNS
        self.ready = trio.Event()
        self.readings = Readings()
        self.own = Own()
        self.rates = (0.0, 0.0)
        """Bytes a second sent and received."""
        self._sensors = sensors
        self._governed = governed
        self._data_path = data_count
        self._data = DataCount.load(data_count)
        self._holds: dict[Code, tuple[str, float]] = {}  # why, and the end by `awake_or_asleep`
        self._too_much = 0
        self._counted = governed.peer.moved_bytes
        self._meter = Meter(trio.current_time())
        self._nursery: trio.Nursery | None = None
        self._obeyed: Limits | None = None

    # --- what people ask ------------------------------------------------------------------------

    def pause(self, seconds: float | None) -> None:
        """Pause, at most for so long."""
        self._hold("asked", "you asked for it", math.inf if seconds is None else seconds)
        self._act()

    def resume(self) -> None:
        """Take back what `pause` did, and what the node imposed on itself."""
        self._holds.clear()
        self._act()

    def _hold(self, code: Code, sentence: str, seconds: float) -> None:
        self._holds[code] = (sentence, awake_or_asleep() + seconds)

    async def change(self, changes: Mapping[str, str], *, keep: bool) -> None:
        """Other limits from now on; ConfigError, and nothing changes, if one is wrong."""
        changed = self.book.changed(changes, "file" if keep else "changed")
        if keep:
            save(self.config, changes)
        self.book = changed
        self._holds.pop("ram", None)
        self._holds.pop("gpu_memory", None)
        await self._look()  # it may depend on a sensor that was not asked before
        self._act()

    # --- the loop -------------------------------------------------------------------------------

    async def run(self) -> None:
        """Govern until cancelled; `ready` is set once the first decision holds."""
        watch = SleepWatch(awake_or_asleep(), TICK_S)
        saved_at = trio.current_time()
        try:
            async with open_nursery() as self._nursery:
                while True:
                    await self._look()
                    self._act()
                    self.ready.set()
                    if trio.current_time() >= saved_at + SAVE_EVERY_S:
                        saved_at = trio.current_time()
                        await trio.to_thread.run_sync(self._data.save, self._data_path)
                    await trio.sleep(TICK_S)
                    await self._after_sleep(watch.slept_s(awake_or_asleep()))
        finally:
            self._count()
            self._data.save(self._data_path)

    async def _look(self) -> None:
        limits = self.book.limits
        readings, self.own = await look(self._sensors, limits)
        self._count()
        self.readings = self._data.counted_in(readings, time.time(), limits.zone)

    def _count(self) -> None:
        sent, received = self._governed.peer.moved_bytes
        moved = sent + received - sum(self._counted)
        self._counted = (sent, received)
        self._data.add(moved, time.time(), self.book.limits.zone)
        self.rates = self._meter.rates(trio.current_time(), sent, received)

    def _act(self) -> None:
        self._obey_amounts()
        self._weigh()
        before, now = self.decision, time.time()
        self.decision = decide(
            self.book.limits, self.readings, now, holds=self._holds_at(now), before=before
        )
        if self.decision.runs:
            if not before.runs:
                self._go_on()
        elif before.runs:
            self._stop()
        elif self.decision.codes != before.codes:
            self._tell_why()
            if "change" in self.decision.codes - before.codes:
                self._holds.pop("change")  # the next process has it, and there is none now
                self._act()

    def _holds_at(self, now: float) -> list[Hold]:
        """Those that last, with their ends on the wall's clock; the others are forgotten."""
        clock = awake_or_asleep()
        self._holds = {code: hold for code, hold in self._holds.items() if hold[1] > clock}
        return [
            Hold(code, sentence, None if end == math.inf else now + end - clock)
            for code, (sentence, end) in self._holds.items()
        ]

    def _stop(self) -> None:
        self._governed.gate.set(is_open=False)
        self._governed.peer.withholds = True
        self._governed.work.put_down()
        self._tell_why()
        if self._nursery is not None:
            self._nursery.start_soon(self._release)

    async def _release(self) -> None:
        """End the engine's process as soon as it may be; unless work goes on before."""
        gate, work = self._governed.gate, self._governed.work
        with trio.move_on_after(GRACE_S):
            await self._governed.notice.until(
                lambda: gate.is_open or not work.busy or self.decision.at_once
            )
        if not gate.is_open:
            await self._governed.engine.suspend()
            if self._holds.pop("change", None) is not None:
                self._act()

    def _go_on(self) -> None:
        self._governed.engine.resume()
        self._governed.peer.withholds = False
        self._governed.gate.set(is_open=True)
        self._governed.report(Resumed())

    def _tell_why(self) -> None:
        self._governed.notice.tell()
        self._governed.report(
            Paused(
                codes=sorted(self.decision.codes),
                message=self.decision.sentence,
                until=self.decision.until,
            )
        )

    # --- amounts --------------------------------------------------------------------------------

    def _obey_amounts(self) -> None:
        """What the limits say of rates and the disk, if they were changed."""
        limits = self.book.limits
        if limits == self._obeyed:
            return
        before, self._obeyed = self._obeyed, limits
        self._limit_traffic()
        govern_engine(self._governed.engine, limits)
        if before is not None and _of_process(before) != _of_process(limits):
            self._hold("change", "the engine starts anew with the changed limits", math.inf)
        self._governed.store.set_cap(disk_cap(limits, self._governed.store))

    def _limit_traffic(self) -> None:
        rates = rates_of(self.book.limits)
        if rates != self._governed.peer.limits:
            self._governed.peer.limit(rates)

    def _weigh(self) -> None:
        """An engine that takes more memory than it may is ended, and left so for a while."""
        limits, own = self.book.limits, self.own
        most = parse_amount(limits.ram).of(total_ram())
        if most is not None and own.ram > most:
            self._too_heavy("ram", f"{format_size(own.ram)} of memory, {format_size(most)} allowed")
        most = parse_amount(limits.gpu_memory).of(own.gpu_total)
        if most is not None and own.gpu_memory is not None and own.gpu_memory > most:
            used = f"{format_size(own.gpu_memory)} of the card's memory, "
            self._too_heavy("gpu_memory", used + f"{format_size(most)} allowed")

    def _too_heavy(self, code: Code, sentence: str) -> None:
        if code in self._holds:
            return
        pause_s = min(MOST_TOO_MUCH_S, TOO_MUCH_S * 2.0**self._too_much)
        self._too_much += 1
        why = f"the node took {sentence}; allow more `{code}`, or take a smaller --max-sequences"
        self._hold(code, why, pause_s)

    async def _after_sleep(self, seconds: float) -> None:
        if seconds:
            slept = f"The computer, or this program, stood still for {format_duration(seconds)}."
            self._governed.report(Note(message=slept))
            await self._governed.work.reconnect()


def govern_engine(engine: Engine, limits: Limits) -> None:
    """How much of the machine the limits give an engine."""
    cores = os.cpu_count() or 1
    engine.govern(threads=limits.threads(cores), nice=limits.nice, duty=limits.gpu_duty)


def rates_of(limits: Limits) -> Rates:
    """What the limits say of sending and receiving."""
    return Rates(parse_rate(limits.upload), parse_rate(limits.download))


def _of_process(limits: Limits) -> tuple[int, str]:
    """What holds only from the start of the engine's process on."""
    return limits.cpu_threads, limits.priority


def disk_cap(limits: Limits, store: Store) -> int:
    """Bytes that the store may hold: what `disk` says, and what leaves `disk_left_free`."""
    stats = os.statvfs(store.root)
    free = stats.f_bavail * stats.f_frsize
    room = store.held_bytes + free - parse_size(limits.disk_left_free)
    return max(0, min(parse_size(limits.disk), room))


def total_ram() -> int:
    """Bytes of RAM that this computer has."""
    import psutil

    return int(psutil.virtual_memory().total)
