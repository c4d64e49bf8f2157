"""The volunteer's work: take leases, answer them with the engine, leave the answers in the outbox.

Three loops share one state. `take_leases` and `Outbox.deliver` live as long as a session with the
hub; `work` lives as long as the node, so what is held is answered while the hub is away too. What
to do next is decided in `leases.plan`.

Stopping never cancels a lease request: a hub that has just granted leases to a request that
nobody waits for would keep them from others until they expire. So the answer is awaited (a few
seconds at most, `hub.LEASE_WAIT_S`) and given back.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import trio

from echo_node.engines.base import AsyncEngine, Completion, Job
from echo_node.events import Event, Trouble, Verdict, Version
from echo_node.hub import Hub
from echo_node.hub_turns import HubTurns, converse
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
"""Failed batches after which their leases are given back."""
MAX_FAILED_BATCHES = 9
"""Failed batches in a row after which the engine is no use."""
_PAUSE_S = 0.5  # after a lease request that was answered at once with nothing

log = logging.getLogger(__name__)


@dataclass
class Work:
    """Done so far."""

    groups: int = 0
    rollouts: int = 0
    tokens: int = 0


class Worker:
    """Answers the leases of one run.

    Args:
        max_sequences: most answers in one batch.
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
        max_sequences: int,
        hub_now: Callable[[], float],
        notice: Notice,
        report: Callable[[Event], None],
    ) -> None:
        self.done = Work()
        self.stopping = False
        self.complete = False
        """The hub said that the run is over."""
        self._run = run
        self._node = node
        self._engine = engine
        self._policies = policies
        self._outbox = outbox
        self._hub_turns = hub_turns
        self._max_sequences = max_sequences
        self._hub_now = hub_now
        self._notice = notice
        self._report = report
        self._held: list[Lease] = []
        self._running: tuple[Lease, ...] = ()
        self._asking: set[int] = set()
        self._failures: Counter[bytes] = Counter()
        self._failed_batches = 0

    @property
    def drained(self) -> bool:
        """Stopped, and nothing is owed any more."""
        return self.stopping and not self._running and not self._asking and self._outbox.empty

    @property
    def busy(self) -> bool:
        """A batch is being answered."""
        return bool(self._running)

    def stop(self) -> None:
        """Take no more leases; give back those not begun; finish what is running."""
        self.stopping = True
        self._outbox.give_back(lease.lease_id for lease in self._held)
        self._held.clear()
        self._notice.tell()

    # --- leases -------------------------------------------------------------------------------

    async def take_leases(self, hub: Hub) -> None:
        """Keep one batch of leases ahead of the one being answered, until stopped.

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

    def _should_ask(self) -> bool:
        ready = self._policies.ready
        return (
            not self.stopping
            and ready is not None
            and ready not in self._asking
            and self._wanted() > 0
        )

    def _wanted(self) -> int:
        return groups_wanted(
            self._held, group_size=self._run.group_size, max_sequences=self._max_sequences
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
            elif not grant.leases and trio.current_time() - asked < _PAUSE_S:
                with trio.move_on_after(_PAUSE_S):
                    await self._notice.until(lambda: self.stopping)
        finally:
            self._asking.discard(version)
            self._notice.tell()

    def _accept(self, lease: Lease) -> None:
        fault = fault_of(lease, self._run, node=self._node, now=self._hub_now())
        if fault:
            log.warning("a lease is not taken: %s", fault)
            self._outbox.give_back([lease.lease_id])
        elif self.stopping:
            self._outbox.give_back([lease.lease_id])
        else:
            self._held.append(lease)
            self._notice.tell()

    # --- answers ------------------------------------------------------------------------------

    async def work(self) -> None:
        """Answer leases as they come, until cancelled; EngineError if the engine is no use."""
        while True:
            await self._notice.until(self._has_work)
            todo = self._plan()
            self._outbox.give_back(lease.lease_id for lease in todo.hopeless)
            if todo.version is not None and todo.version != self._policies.active:
                self._held = [*todo.kept, *todo.batch]
                await self._activate(todo.version)
            else:
                self._held = list(todo.kept)
                if todo.batch:
                    await self._answer(todo.batch)

    def _plan(self) -> Plan:
        return plan(
            self._held,
            active=self._policies.active,
            newest=self._policies.ready,
            now=self._hub_now(),
            max_sequences=self._max_sequences,
        )

    def _has_work(self) -> bool:
        todo = self._plan()
        new = todo.version is not None and todo.version != self._policies.active
        return not self.stopping and bool(new or todo.batch or todo.expired or todo.hopeless)

    async def _activate(self, version: int) -> None:
        try:
            await self._engine.activate(version, self._policies.path(version))
        except EngineError as error:
            self._policies.refused(version)
            self._report(Trouble(message=str(error)))
        except ProcessError as error:  # tried again by the next round
            self._report(Trouble(message=error.message.splitlines()[0]))
        else:
            self._policies.activated(version)
            self._report(Version(version=version))

    async def _answer(self, batch: tuple[Lease, ...]) -> None:
        version = self._policies.active
        assert version is not None
        self._running = batch
        try:
            work = [(lease, jobs_of(lease)) for lease in batch]
            answers = await converse(self._engine, self._hub_turns, work)
        except (EngineError, ProcessError) as error:
            self._failed(batch, error)
        else:
            self._failed_batches = 0
            answered = tuple(lease for lease in batch if lease.lease_id in answers)
            completions = [one for lease in answered for one in answers[lease.lease_id]]
            for submission in submissions(self._run.run_id, version, answered, completions):
                self._outbox.submit(submission)
            given_up = [lease.lease_id for lease in batch if lease not in answered]
            if given_up:
                log.warning("%d leases ended before their dialogues did", len(given_up))
                self._outbox.give_back(given_up)
            self.done.groups += len(answered)
            self.done.rollouts += len(completions)
            self.done.tokens += sum(map(_sampled, completions))
        finally:
            self._running = ()
            self._notice.tell()

    def _failed(self, batch: tuple[Lease, ...], error: EngineError | ProcessError) -> None:
        self._report(Trouble(message=error.message.splitlines()[0]))
        self._failed_batches += 1
        if self._failed_batches >= MAX_FAILED_BATCHES:
            raise EngineError(
                f"the engine failed {MAX_FAILED_BATCHES} batches in a row.",
                fix="Try fewer answers at a time: --max-sequences.",
            ) from error
        self._failures.update(lease.lease_id for lease in batch)
        again = [x for x in batch if self._failures[x.lease_id] < MAX_LEASE_FAILURES]
        given_up = [x.lease_id for x in batch if x not in again]
        if self.stopping:
            given_up = [lease.lease_id for lease in batch]
        else:
            self._held = [*again, *self._held]
        self._outbox.give_back(given_up)


def jobs_of(lease: Lease) -> list[Job]:
    """The answers a lease orders."""
    prompt = unpack_tokens(lease.prompt)
    return [
        Job(prompt, lease.seed, index, lease.sampling, lease.turns)
        for index in range(lease.group_size)
    ]


def submissions(
    run_id: str, version: int, batch: tuple[Lease, ...], completions: list[Completion]
) -> list[Submission]:
    """The groups that answer a batch of leases, from the completions of all their jobs."""
    answers = iter(completions)
    return [
        Submission(
            run_id=run_id,
            lease_id=lease.lease_id,
            version=version,
            rollouts=tuple(_rollout(next(answers)) for _ in range(lease.group_size)),
        )
        for lease in batch
    ]


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
