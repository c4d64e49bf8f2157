"""Sessions with the hub: find it, verify what it says, get ready, work, and come back.

Promises: every wait has a deadline and a name (a `Step` event); what the hub says counts only if
it was signed by the key in the bootstrap file; whatever the network does, the node tries again,
with growing pauses.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import msgspec
import trio

from echo_node.chronicle import WORKING
from echo_node.clock import complaint
from echo_node.credit import CreditKeeper
from echo_node.directory import DIRECTORY_S, ask_directory
from echo_node.doctor.explain import check_for
from echo_node.door import enter, why_unreachable
from echo_node.downloads import Downloads, fetch_deadline_s, size_of
from echo_node.engines.remote import RemoteEngine
from echo_node.events import Engine, Event, Joined, Note, Standby, Step, Trouble
from echo_node.gate import Gate
from echo_node.hub import ANSWER_S, Greeting, Hub, Offer
from echo_node.hub_turns import HubTurns
from echo_node.notice import Notice
from echo_node.outbox import Outbox
from echo_node.planner import PEEK_S, Planner, Unplanned, resources_of, told
from echo_node.policies import Policies
from echo_node.steps import step
from echo_node.worker import Work, Worker
from echo_p2p.artifact.manifest import Artifact
from echo_p2p.artifact.store import Store
from echo_p2p.bootstrap import RunEntry
from echo_p2p.environments import ENVIRONMENTS
from echo_p2p.errors import (
    EngineError,
    FarVersionError,
    ManifestError,
    NetError,
    ProcessError,
    UnreachableError,
    VersionError,
)
from echo_p2p.net.host import Peer
from echo_p2p.nursery import open_nursery
from echo_p2p.swarm.exchange import Exchange
from echo_p2p.upgrade import upgrade_command
from echo_p2p.wire import RunDescription

log = logging.getLogger(__name__)

CONNECT_S = 20.0
LOAD_S = 3600.0
GOODBYE_S = 3.0
FAREWELL_S = 30.0
"""How long a stopped node tries to reach a lost hub to hand in what it owes."""
DIRECTORY_FIRST, DIRECTORY_EVERY = 3, 4
"""Failed attempts after which the directory is asked, and then how often: its process is large."""


def reconnect_delay_s(failures: int, chance: float) -> float:
    """Pause after `failures` (1, 2, ...) in a row; `chance` in [0, 1) spreads nodes out."""
    return min(60.0, 2.0 ** min(failures - 1, 10)) * (0.5 + 0.5 * chance)


def asks_directory(failures: int) -> bool:
    """Whether to ask the directory where the hub is, after so many attempts in a row."""
    return failures >= DIRECTORY_FIRST and (failures - DIRECTORY_FIRST) % DIRECTORY_EVERY == 0


@dataclass(frozen=True)
class Parts:
    """What a node is made of, for as long as it runs."""

    entry: RunEntry
    node: bytes
    peer: Peer
    store: Store
    exchange: Exchange
    downloads: Downloads
    engine: RemoteEngine
    policies: Policies
    outbox: Outbox
    credit: CreditKeeper
    notice: Notice
    gate: Gate
    report: Callable[[Event], None]
    planner: Planner


class Sessions:
    """One session with the hub after the other. `worker` is there once the engine is ready."""

    def __init__(self, parts: Parts) -> None:
        self.worker: Worker | None = None
        self.held = False
        """There is a session now."""
        self.away = False
        """The hub could not be reached, and was not since."""
        self._parts = parts
        self._report = parts.report
        self._addresses = parts.entry.hub_addresses
        self._run: RunDescription | None = None
        self._clock_offset = 0.0
        self._clock_complained = False
        self._engine = ""
        self._stopped_at: float | None = None
        self._gave_up = False
        self._pins = ExitStack()
        self._hub_turns = HubTurns(parts.notice, self._hub_now)
        self._hub: Hub | None = None

    @property
    def stopping(self) -> bool:
        return self._stopped_at is not None

    @property
    def over(self) -> bool:
        """There is nothing more to do."""
        if self.worker is None:
            return self.stopping
        return self.worker.drained or (self._gave_up and not self.worker.busy)

    def stop(self) -> None:
        """Take no more leases, hand in what is running, then be over."""
        self._stopped_at = trio.current_time()
        if self.worker is not None:
            self.worker.stop()
        self._parts.notice.tell()

    @property
    def done(self) -> Work:
        """Answered so far."""
        return Work() if self.worker is None else self.worker.done

    @property
    def standby(self) -> Standby | None:
        """Why the hub gives no work, while others do it and nothing is left to be answered."""
        return None if self.worker is None or self.worker.busy else self.worker.standby

    @property
    def busy(self) -> bool:
        """Something is being answered."""
        return self.worker is not None and self.worker.busy

    def put_down(self) -> None:
        """Work stops for a while: give back what is held and not begun."""
        if self.worker is not None:
            self.worker.put_down()

    async def reconnect(self) -> None:
        """The connection is dead, whether it knows or not: begin another session."""
        await self._parts.peer.disconnect(self._parts.entry.hub_key)

    async def run(self) -> None:
        """Hold sessions until `over`."""
        with self._pins:
            async with open_nursery() as nursery:
                nursery.start_soon(self._hold_all, nursery)
                await self._parts.notice.until(lambda: self.over)
                await self._say_goodbye()
                nursery.cancel_scope.cancel()

    async def _say_goodbye(self) -> None:
        """A hub that knows we left waits for nothing of ours."""
        with trio.move_on_after(GOODBYE_S):
            try:
                if self._hub is not None:
                    await self._hub.farewell()
            except NetError as error:
                log.debug("the hub did not hear our goodbye: %s", error)

    async def _hold_all(self, nursery: trio.Nursery) -> None:
        failures = 0
        while True:
            error: NetError | None = None
            try:
                hub, base = await self._meet(failures)
                await self._prepare(hub, base, nursery)
                failures = 0
                await self._hold(hub)
            except* NetError as group:
                error = _first(group)
            assert error is not None  # a session ends by failing, or by our being cancelled
            await self._parts.peer.disconnect(self._parts.entry.hub_key)
            failures += 1
            await self._pause(error, reconnect_delay_s(failures, random.random()))

    async def _pause(self, error: NetError, delay: float) -> None:
        self.away = True
        self._report(_trouble(error, delay))
        end = trio.current_time() + delay
        late = self._stopped_at is not None and end > self._stopped_at + FAREWELL_S
        if late or (self.worker is not None and self.worker.complete):
            self._gave_up = True
            self._hub_turns.give_up()
            self._parts.notice.tell()
        await trio.sleep_until(end)

    async def _meet(self, failures: int) -> tuple[Hub, Artifact]:
        """Connect to the hub, greet it, and learn what is newest."""
        try:
            peer_id = await self._connect()
        except UnreachableError:
            if not asks_directory(failures):
                raise
            with step(self._report, "asking the directory where the hub is", 2 * DIRECTORY_S):
                found = await ask_directory(self._parts.entry)
            if not found:
                raise
            self._addresses = tuple(dict.fromkeys((*found, *self._parts.entry.hub_addresses)))
            peer_id = await self._connect()
        hub = Hub(self._parts.peer, peer_id, self._parts.entry.id)
        with step(self._report, "greeting the hub", 2 * ANSWER_S + 5):
            self._engine = self._engine or await self._parts.planner.engine_name()
            greeting = await enter(hub, self._engine)
        self.away = False
        self._learn(greeting)
        return hub, greeting.base

    async def _connect(self) -> str:
        with step(self._report, "connecting to the hub", CONNECT_S + 5):
            try:
                return await self._parts.peer.connect(self._addresses, deadline_s=CONNECT_S)
            except UnreachableError as error:
                if not error.tried:
                    raise
                raise await why_unreachable(self._parts.entry.id, self._addresses, error) from error

    def _learn(self, greeting: Greeting) -> None:
        run = msgspec.structs.replace(greeting.run, created_at=0.0)
        lacking = [name for name in run.environments if name not in ENVIRONMENTS]
        if lacking:
            raise VersionError(
                f"run {run.run_id} needs {', '.join(lacking)}, and this program has not: "
                "its environments are older.",
                fix=f"Upgrade it: {upgrade_command()}",
            )
        if self._run is not None and run != self._run:
            raise ManifestError(
                f"the hub describes run {run.run_id} otherwise than before.",
                fix="Join again to take part in the changed run.",
            )
        self._run = run
        self._note_time(greeting.hub_time)
        wrong_clock = complaint(self._clock_offset)
        if wrong_clock and not self._clock_complained:
            self._clock_complained = True
            self._report(Note(message=wrong_clock))
        if greeting.newest is not None:
            self._offer(greeting.newest)
        self._report(
            Joined(
                run=run.run_id,
                task=run.task,
                node=self._parts.peer.peer_id,
                hub=self._parts.entry.hub_key,
                **self._parts.peer.limits.as_text(),
            )
        )

    def _offer(self, offer: Offer) -> None:
        """A version too far ahead is a fault of the hub's, and may pass: work goes on without."""
        try:
            self._parts.policies.offer(offer)
        except FarVersionError as error:
            self._report(Trouble(message=str(error)))

    def _note_time(self, hub_time: float) -> None:
        self._clock_offset = hub_time - time.time()

    def _hub_now(self) -> float:
        return time.time() + self._clock_offset

    async def _prepare(self, hub: Hub, base: Artifact, nursery: trio.Nursery) -> None:
        """Before the first work: base model, engine, worker."""
        if self.worker is not None:
            return
        assert self._run is not None
        await self._parts.gate.passed()
        await self._plan(hub, base, self._run)
        await self._parts.gate.behind(lambda: self._fetch(hub, base))
        folder = self._pins.enter_context(self._parts.store.pin(base.id))
        await self._load(folder, self._run)
        self.worker = Worker(
            self._run,
            node=self._parts.node,
            engine=self._parts.engine,
            policies=self._parts.policies,
            outbox=self._parts.outbox,
            hub_turns=self._hub_turns,
            hub_now=self._hub_now,
            notice=self._parts.notice,
            gate=self._parts.gate,
            report=self._report,
        )
        nursery.start_soon(self.worker.work)

    async def _plan(self, hub: Hub, base: Artifact, run: RunDescription) -> None:
        """Decide engine and batch for the run, and say it."""
        parts = self._parts
        with step(self._report, "planning the work", PEEK_S + 10):
            plan = await parts.planner.plan(parts.peer, hub.peer_id, parts.store, base, run)
        if isinstance(plan, Unplanned):
            self._report(
                Note(message=f"No plan: {plan.why} {plan.max_sequences} answers at a time.")
            )
            parts.engine.use(max_sequences=plan.max_sequences)
        else:
            self._report(told(plan))
            parts.engine.use(
                engine=plan.engine,
                max_sequences=plan.max_sequences,
                resources=resources_of(plan),
            )

    async def _fetch(self, hub: Hub, base: Artifact) -> None:
        with step(self._report, "fetching the base model", 2 * fetch_deadline_s(size_of(base))):
            await self._parts.downloads.obtain(base, hub.peer_id)
            await self._parts.downloads.tell(hub)

    async def _load(self, folder: Path, run: RunDescription) -> None:
        gate = self._parts.gate
        while True:
            await gate.passed()
            with step(self._report, "loading the base model", LOAD_S):
                try:
                    info = await self._parts.engine.load(folder, run.dtype)
                    break
                except ProcessError as error:  # the engine gives itself up after a few
                    if gate.is_open:  # else it was suspended, and is loaded again later
                        self._report(Trouble(message=error.message.splitlines()[0]))
        if info.vocab_size != run.vocab_size:
            raise EngineError(
                f"the base model has {info.vocab_size} tokens, the run {run.vocab_size}."
            )
        self._report(
            Engine(
                name=info.name,
                device=info.device,
                dtype=info.dtype,
                max_sequences=info.max_sequences,
            )
        )

    async def _hold(self, hub: Hub) -> None:
        """Work with a hub until it fails."""
        assert self.worker is not None
        self._report(Step(step=WORKING))
        self.held, self._hub = True, hub
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(hub.watch, self._offer, self._note_time)
                nursery.start_soon(
                    self._parts.gate.behind, lambda: self._parts.policies.follow(hub.peer_id)
                )
                nursery.start_soon(self.worker.take_leases, hub)
                nursery.start_soon(self._parts.outbox.deliver, hub)
                nursery.start_soon(self._hub_turns.deliver, hub)
                nursery.start_soon(self._parts.downloads.tell_all, hub)
                nursery.start_soon(self._parts.credit.follow, hub)
        finally:
            self.held, self._hub = False, None


def _trouble(error: NetError, delay: float) -> Trouble:
    return Trouble(message=str(error), retry_s=round(delay, 1), check=check_for(error) or "")


def _first(group: BaseExceptionGroup[NetError]) -> NetError:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, NetError)
    return error
