"""The volunteer's work: take leases, answer them with the engine, leave the answers in the outbox.

Three loops share one state. `take_leases` and `Outbox.deliver` live as long as a session with the
hub; `work` lives as long as the node, so what is held is answered while the hub is away too. What
to do next is decided in `leases.plan`.

Each lease is answered by a task of its own, all of it by the version that was active when it was
begun, and handed in as soon as its last answer is done. Leases are begun, and new ones asked for,
as places in the engine get free; nothing waits for the longest answer of others.

Stopping never cancels a lease request: a hub that has just granted leases to a request that
nobody waits for would keep them from others until they expire. So the answer is awaited (a few
seconds at most, `hub.LEASE_WAIT_S`) and given back.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import trio

from echo_node.engines.base import AsyncEngine, Completion, Job
from echo_node.events import Event, OffStandby, Standby, Trouble, Verdict, Version
from echo_node.gate import Gate
from echo_node.hub import Hub
from echo_node.hub_turns import HubTurns, asks_hub, converse
from echo_node.leases import Plan, fault_of, groups_wanted, plan
from echo_node.notice import Notice
from echo_node.outbox import Outbox
from echo_node.policies import Policies
from echo_p2p.errors import EngineError, ProcessError
from echo_p2p.nursery import open_nursery
from echo_p2p.wire import (
    Lease,
    Rollout,
    RunDescription,
    Submission,
    pack_logprobs,
    pack_tokens,
    unpack_tokens,
)

MAX_LEASE_FAILURES = 3
"""Failures after which a lease is given back."""
MAX_ENGINE_FAILURES = 9
"""Failures in a row, without one group done, after which the engine is no use."""
_PAUSE_S = 0.5  # after a lease request that was answered at once with nothing

log = logging.getLogger(__name__)


@dataclass
class Work:
    """Done so far."""

    groups: int = 0
    rollouts: int = 0
    tokens: int = 0


@dataclass(eq=False)
class _Flight:
    """A lease that is being answered; `left` of its answers are not over."""

    lease: Lease
    version: int
    left: int


class Worker:
    """Answers the leases of one run.

    Args:
        hub_now: Unix seconds by the hub's clock.
        notice: told, and heard, about every change of state.
        report: where events go.
    """

    def __init__(
        self,
        run: RunDescription,
        *,
        node: bytes,
        engine: AsyncEngine,
        policies: Policies,
        outbox: Outbox,
        hub_turns: HubTurns,
        hub_now: Callable[[], float],
        notice: Notice,
        gate: Gate,
        report: Callable[[Event], None],
    ) -> None:
        self.done = Work()
        self.stopping = False
        self.complete = False
        """The hub said that the run is over."""
        self.standby: Standby | None = None
        """Why the hub gives no work, while others do it."""
        self._run = run
        self._node = node
        self._engine = engine
        self._policies = policies
        self._outbox = outbox
        self._hub_turns = hub_turns
        self._hub_now = hub_now
        self._notice = notice
        self._gate = gate
        self._report = report
        self._held: list[Lease] = []
        self._flights: list[_Flight] = []
        self._used: set[int] = set()  # versions that the engine still has
        self._asking: set[int] = set()
        self._failures: Counter[bytes] = Counter()
        self._failed_in_a_row = 0
        self._failures_seen = 0

    @property
    def drained(self) -> bool:
        """Stopped, and nothing is owed any more."""
        return self.stopping and not self._flights and not self._asking and self._outbox.empty

    @property
    def busy(self) -> bool:
        """Leases are being answered."""
        return bool(self._flights)

    def stop(self) -> None:
        """Take no more leases; give back those not begun; finish what is running."""
        self.stopping = True
        self.put_down()

    def put_down(self) -> None:
        """The gate was closed: give back what is not begun. What runs may go on to its end."""
        self._outbox.give_back(lease.lease_id for lease in self._held)
        self._held.clear()
        self._notice.tell()

    # --- leases -------------------------------------------------------------------------------

    async def take_leases(self, hub: Hub) -> None:
        """Keep as many leases ahead as the engine may find room for, until stopped.

        There is at most one request for each version: when a newer one is ready, the hub is asked
        again at once, while the older request may still wait there.
        """
        async with open_nursery() as nursery:
            while True:
                await self._notice.until(self._should_ask)
                version = self._policies.ready
                assert version is not None
                self._asking.add(version)
                nursery.start_soon(self._ask, hub, version)

    @property
    def _takes_work(self) -> bool:
        return not self.stopping and self._gate.is_open

    def _should_ask(self) -> bool:
        ready = self._policies.ready
        return (
            self._takes_work
            and ready is not None
            and ready not in self._asking
            and self._wanted() > 0
        )

    def _wanted(self) -> int:
        return groups_wanted(
            self._held, group_size=self._run.group_size, capacity=self._engine.capacity
        )

    async def _ask(self, hub: Hub, version: int) -> None:
        try:
            asked = trio.current_time()
            grant = await hub.lease(version=version, groups=max(1, self._wanted()))
            for lease in grant.leases:
                self._accept(lease)
            for verdict in grant.verdicts:
                self._outbox.overrule(verdict)
                self._report(Verdict(code=verdict.code, message=verdict.sentence))
            if grant.complete:
                self.complete = True
                self._held.clear()  # nobody wants them back
                self.stop()
            elif grant.leases:
                self._stands_by(None)
            else:
                await self._ask_why(hub)
                if trio.current_time() - asked < _PAUSE_S:
                    with trio.move_on_after(_PAUSE_S):
                        await self._notice.until(lambda: self.stopping)
        finally:
            self._asking.discard(version)
            self._notice.tell()

    async def _ask_why(self, hub: Hub) -> None:
        """There was no work: is there enough without us?"""
        if not self._takes_work:
            return
        said = await hub.standby()
        self._stands_by(Standby(message=said.sentence, until=said.until) if said.standby else None)

    def _stands_by(self, standby: Standby | None) -> None:
        before, self.standby = self.standby, standby
        if standby is None and before is not None:
            self._report(OffStandby())
        elif standby is not None and (before is None or before.message != standby.message):
            self._report(standby)

    def _accept(self, lease: Lease) -> None:
        fault = fault_of(lease, self._run, node=self._node, now=self._hub_now())
        if fault:
            log.warning("a lease is not taken: %s", fault)
            self._outbox.give_back([lease.lease_id])
        elif not self._takes_work:
            self._outbox.give_back([lease.lease_id])
        else:
            self._held.append(lease)
            self._notice.tell()

    # --- answers ------------------------------------------------------------------------------

    async def work(self) -> None:
        """Answer leases as they come, until cancelled; EngineError if the engine is no use."""
        async with open_nursery() as nursery:
            while True:
                await self._notice.until(self._has_work)
                todo = self._plan()
                self._outbox.give_back(lease.lease_id for lease in todo.hopeless)
                version = self._policies.active
                if todo.version is not None and todo.version != version:
                    self._held = [*todo.kept, *todo.batch]
                    await self._activate(todo.version)
                else:
                    self._held = list(todo.kept)
                    for lease in todo.batch:
                        assert version is not None
                        flight = _Flight(lease, version, lease.group_size)
                        self._flights.append(flight)
                        nursery.start_soon(self._answer, flight)
                    self._notice.tell()

    def _plan(self) -> Plan:
        return plan(
            self._held,
            active=self._policies.active,
            newest=self._policies.ready,
            now=self._hub_now(),
            room=self._engine.capacity - sum(flight.left for flight in self._flights),
        )

    def _has_work(self) -> bool:
        todo = self._plan()
        new = todo.version is not None and todo.version != self._policies.active
        return self._takes_work and bool(new or todo.batch or todo.expired or todo.hopeless)

    async def _activate(self, version: int) -> None:
        try:
            await self._engine.activate(version, self._policies.path(version))
        except EngineError as error:
            self._policies.refused(version)
            self._report(Trouble(message=str(error)))
        except ProcessError as error:  # tried again by the next round
            if self._gate.is_open:
                self._report(Trouble(message=error.message.splitlines()[0]))
        else:
            self._policies.activated(version)
            self._used.add(version)
            self._release()
            self._report(Version(version=version))

    def _release(self) -> None:
        """Let the engine forget versions that nothing is answered by any more."""
        for version in self._used - {flight.version for flight in self._flights}:
            if version != self._policies.active:
                self._engine.release(version)
                self._used.discard(version)

    async def _answer(self, flight: _Flight) -> None:
        try:
            answers = await self._answers(flight)
        except (EngineError, ProcessError) as error:
            self._flights.remove(flight)
            self._failed(flight.lease, error)
        else:
            self._flights.remove(flight)
            self._failed_in_a_row = 0
            if answers is None:
                log.warning("a lease ended before its dialogues did")
                self._outbox.give_back([flight.lease.lease_id])
            else:
                self._outbox.submit(
                    submission(self._run.run_id, flight.version, flight.lease, answers)
                )
                self.done.groups += 1
                self.done.rollouts += len(answers)
                self.done.tokens += sum(map(_sampled, answers))
        finally:
            self._release()
            self._notice.tell()

    async def _answers(self, flight: _Flight) -> list[Completion] | None:
        """The answers to a lease; None if it ended before they were all there."""

        def left(count: int) -> None:
            flight.left = count
            self._notice.tell()

        jobs, version = jobs_of(flight.lease), flight.version
        if asks_hub(flight.lease):
            return await converse(
                self._engine, self._hub_turns, flight.lease, jobs, version=version, left=left
            )
        return await self._engine.generate(
            jobs, version=version, finished=lambda: left(flight.left - 1)
        )

    def _failed(self, lease: Lease, error: EngineError | ProcessError) -> None:
        if not self._gate.is_open:  # it was suspended in the midst of it
            self._failures_seen = self._engine.failures
            self._outbox.give_back([lease.lease_id])
            return
        if self._engine.failures != self._failures_seen:  # else it is what failed others too
            self._failures_seen = self._engine.failures
            self._failed_in_a_row += 1
            self._report(Trouble(message=error.message.splitlines()[0]))
        if self._failed_in_a_row >= MAX_ENGINE_FAILURES:
            raise EngineError(
                f"the engine failed {MAX_ENGINE_FAILURES} times in a row.",
                fix="Try fewer answers at a time: --max-sequences.",
            ) from error
        self._failures[lease.lease_id] += 1
        if self.stopping or self._failures[lease.lease_id] >= MAX_LEASE_FAILURES:
            self._outbox.give_back([lease.lease_id])
        else:
            self._held.insert(0, lease)


def jobs_of(lease: Lease) -> list[Job]:
    """The answers a lease orders."""
    prompt = unpack_tokens(lease.prompt)
    return [
        Job(prompt, lease.seed, index, lease.sampling, lease.turns)
        for index in range(lease.group_size)
    ]


def submission(
    run_id: str, version: int, lease: Lease, answers: Sequence[Completion]
) -> Submission:
    """The group that answers a lease."""
    return Submission(
        run_id=run_id,
        lease_id=lease.lease_id,
        version=version,
        rollouts=tuple(map(_rollout, answers)),
    )


def _sampled(answer: Completion) -> int:
    """Tokens of an answer that the policy sampled."""
    return len(answer.tokens) - sum(end - start for start, end in answer.observed)


def _rollout(answer: Completion) -> Rollout:
    return Rollout(
        tokens=pack_tokens(answer.tokens),
        logprobs=pack_logprobs(answer.logprobs),
        finish=answer.finish,
        observed=tuple(answer.observed),
    )
