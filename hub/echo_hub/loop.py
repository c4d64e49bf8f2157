"""The learner's loop: take a batch, update, commit, publish, evaluate.

Order within one update, each step durable before the next: the checkpoint folder appears whole and
is read back; the ledger commits the update together with the groups it consumed; the version is
recorded as published; it is announced. A kill between any two steps is repaired by `prepare`: an
uncommitted checkpoint is made again, an unpublished version is published.

What happens when an update is refused or the learner dies is in `guarding`. A return to an earlier
version is an update like any other, of no groups: it has a number that no version had before. What
an operator wants is done between two updates, or instead of waiting for rollouts.
"""

from __future__ import annotations

import logging
import math
import shutil
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean, pstdev, stdev
from typing import TypeVar

import msgspec
import trio

from echo_hub.config import RunConfig
from echo_hub.control.actions import PauseRun, RollBack, RunAction
from echo_hub.guarding import Guarding
from echo_hub.learner.client import Learner
from echo_hub.learner.messages import Trained
from echo_hub.ledger.guard import ROLLED_BACK_TO, GuardState, Pause
from echo_hub.ledger.ledger import Ledger, Recovered
from echo_hub.orders import Orders, missing_version
from echo_hub.paths import RunFolder
from echo_hub.publish.publisher import Publisher
from echo_hub.rollouts.buffer import ScoredGroup
from echo_hub.rollouts.evaluation import Evaluated
from echo_hub.rollouts.front import Front
from echo_hub.setbacks import kept_versions, version_to_return_to
from echo_hub.update_facts import Shares, UpdateFacts, facts_of
from echo_p2p.errors import LearnerError, LedgerError, ProcessError
from echo_p2p.nursery import open_nursery

log = logging.getLogger(__name__)

T = TypeVar("T")

TRAIN_DEADLINE_S = 3600.0


@dataclass(frozen=True)
class LearnerNow:
    """What the learner does, for `for_s` seconds; `recent` are its last updates, but the first one
    of this process, which waited for nodes to join."""

    version: int
    doing: str
    for_s: float
    recent: tuple[UpdateFacts, ...] = ()
    pause: Pause | None = None
    complete: bool = False


class LearnerLoop:
    """One run's updates. `version` is the learner's version now."""

    def __init__(
        self,
        *,
        config: RunConfig,
        folder: RunFolder,
        version: int,
        front: Front,
        learner: Learner,
        ledger: Ledger,
        publisher: Publisher,
        recovered: GuardState,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.version = version
        self.evaluations: dict[int, float] = {}
        """Mean held-out reward of each version that was evaluated; `evaluated` says more of it."""
        self.evaluated: dict[int, Evaluated] = {}
        self._evaluated_at = 0
        self.history: list[UpdateFacts] = []
        self.doing = "starting"
        self._since = time.monotonic()
        self._changed = trio.Event()
        self._counted, self._spent = self._since, learner.spent
        self._config = config
        self._folder = folder
        self._front = front
        self._learner = learner
        self._ledger = ledger
        self._publisher = publisher
        self.guarding = Guarding(
            front=front,
            ledger=ledger,
            recovered=recovered,
            refusals=config.guard.refusals,
            clock=clock,
            on_news=self._wake,
        )
        self.orders = Orders(self._look_up)

    @property
    def shares(self) -> Shares:
        """Of the time from the second update on: the first waits for nodes to join."""
        return Shares.of(self.history[1:])

    def now(self, *, look_back: int = 20) -> LearnerNow:
        """What the learner does now, and its last updates."""
        return LearnerNow(
            version=self.version,
            doing=self.doing,
            for_s=time.monotonic() - self._since,
            recent=tuple(self.history[1:][-look_back:]),
            pause=self.guarding.pause,
            complete=self._complete(),
        )

    def state(self, now: float) -> str:
        """What the learner does now, and for how long."""
        return f"{self.doing} for {now - self._since:.1f} s"

    async def changed(self) -> None:
        """Wait for news: another state, an update, an evaluation."""
        await self._changed.wait()

    def _do(self, what: str) -> None:
        self.doing, self._since = what, time.monotonic()
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def prepare(self, recovered: Recovered) -> None:
        """Bring ledger, checkpoints and publication to the same version after a start."""
        if recovered.version is None:
            await self._ledger.begin()
        elif not recovered.guard.batch >= frozenset(self._learner.batch):  # and blank groups
            raise LearnerError(
                f"the checkpoint of version {self.version} was made from other groups than the "
                "ledger says.",
                fix="Restore ledger.sqlite and checkpoints/ from the same backup.",
            )
        for one in recovered.evaluated:
            self._take_note(one)
        self._evaluated_at = max(self.evaluated, default=0)
        adapter = self._folder.adapter(self.version)
        if recovered.published is not None and recovered.published.version == self.version:
            await self._publisher.resume(self.version, recovered.published.envelope, adapter)
        else:
            await self._publisher.publish(self.version, adapter)
        self._front.advance(self.version, published=True)

    async def run(self, stop: trio.Event, *, until: int | None = None) -> None:
        """Train until the configured number of updates, until version `until`, or until `stop` is
        set. It may be run again."""
        self.orders.open()
        async with open_nursery() as nursery:
            if self.version == 0 and 0 not in self.evaluations:
                nursery.start_soon(self._evaluate, 0, stop)
            while not (self._complete() or stop.is_set() or self._reached(until)):
                await self.orders.carry_out(self._carry_out)
                if self.guarding.pause:
                    if not await self._paused(stop):
                        break
                    continue
                if not await self._update(stop):
                    break
                if self._evaluation_is_due():
                    self._evaluated_at = self.version
                    nursery.start_soon(self._evaluate, self.version, stop)
        self.orders.close()
        await self._publish_now()
        if self._complete() and not stop.is_set():
            self._front.close_training()
            if self.version not in self.evaluations:
                await self._evaluate(self.version, stop)
            self._front.complete()
        self._do("idle")

    def _evaluation_is_due(self) -> bool:
        """Is this the first published version since a multiple of `evaluation.every`?"""
        every, latest = self._config.evaluation.every, self._publisher.latest
        if not every or self._complete() or latest is None or latest.version != self.version:
            return False
        return self.version // every > self._evaluated_at // every

    def _reached(self, until: int | None) -> bool:
        return until is not None and self.version >= until

    def _complete(self) -> bool:
        return 0 < self._config.run.updates <= self.version

    async def _update(self, stop: trio.Event) -> bool:
        """One update, or none if an operator wants something first; False if `stop` was set while
        waiting for its batch."""
        started = time.monotonic()
        self._do("waiting for rollouts")
        take = partial(self._front.take_batch, self.orders.waiting)
        groups = await _unless(stop, take)
        if groups is None:
            if stop.is_set():
                self._do("stopping")
            return not stop.is_set()
        ready = time.monotonic()
        trained = await self._train(groups, stop)
        if trained is None:
            return True
        self.guarding.applied()
        blank = await self._front.take_blank()
        if blank:
            trained = msgspec.structs.replace(
                trained, metrics=metrics_of_all(trained, groups, blank)
            )
        tasks = self._front.task_metrics()
        metrics = {
            "reward_error": reward_error([*groups, *blank]),
            "waited_seconds": ready - started,
        }
        await self._ledger.commit_update(
            trained.version,
            [group.group_id for group in (*groups, *blank)],
            trained.metrics | metrics | tasks,
        )
        for group in groups:
            trace = {"trace": group.lease_id.hex(), "version": trained.version}
            log.debug("trained on", extra=trace)
        self.version = trained.version
        due = self.version % self._config.kappa == 0 or self._complete()
        if due:
            await self._publisher.publish(self.version, self._folder.adapter(self.version))
        self._front.advance(self.version, published=due)
        now = time.monotonic()
        spent, period_s = self._learner.spent - self._spent, now - self._counted
        self._spent, self._counted = self._learner.spent, now
        waited_s, train_s = ready - started, now - ready
        self.history.append(facts_of(trained, waited_s, train_s, period_s, spent, tasks))
        self._wake()
        await self._prune(trained.metrics.get("good_version"))
        return True

    async def _train(self, groups: Sequence[ScoredGroup], stop: trio.Event) -> Trained | None:
        """The learner's update on a batch; None if there is none, and the batch is dealt with."""
        while not stop.is_set():
            self._do("training")
            blank, arms = self._front.blank_rewards()
            try:
                return await self._learner.train(
                    self.version,
                    [group.for_learner() for group in groups],
                    out=self._folder.checkpoint(self.version + 1),
                    deadline_s=TRAIN_DEADLINE_S,
                    batch=[group.group_id for group in groups],
                    blank=blank,
                    blank_arms=arms,
                    forget=self.guarding.forgets(self.version),
                )
            except LearnerError as error:
                self._do("looking at a refused batch")
                back_to = await self.guarding.refused(self.version, groups, error)
                if back_to is not None:
                    await self._return_to(back_to)
                return None
            except ProcessError as error:
                if not await self.guarding.died(self.version, groups, error):
                    return None
        return None

    async def _return_to(self, back_to: int, *, by_operator: bool = False) -> None:
        """Go on from the last good version that was published, under a new number."""
        self._do("going back")
        kept = self._folder.kept() & self._front.published
        to, version = version_to_return_to(kept, back_to), self.version + 1
        checkpoint, out = self._folder.checkpoint(to), self._folder.checkpoint(version)
        try:
            await self._learner.roll_back(
                self.version, checkpoint, out=out, deadline_s=TRAIN_DEADLINE_S
            )
        except (LearnerError, ProcessError) as error:
            why = f"the learner cannot go back to version {to}: {error.message}"
            if by_operator:
                raise LearnerError(why) from error
            await self.guarding.pause_at(self.version, why)
            return
        await self._ledger.commit_update(version, [], {ROLLED_BACK_TO: float(to)})
        self.version = version
        await self._front.withdraw(range(to + 1, version))
        await self._publisher.publish(version, self._folder.adapter(version))
        self._front.advance(version, published=True)
        await self.guarding.returned(version, to, by_operator=by_operator)

    async def _paused(self, stop: trio.Event) -> bool:
        """Wait until an operator lets the run go on, or wants something else; False if `stop` was
        set."""
        self._do("paused")
        wait = partial(self.guarding.until_resumed, self.orders.waiting)
        return bool(await _unless(stop, wait))

    async def _publish_now(self) -> bool:
        latest = self._publisher.latest
        if latest is not None and latest.version >= self.version:
            return False
        await self._publisher.publish(self.version, self._folder.adapter(self.version))
        self._front.advance(self.version, published=True)
        return True

    # --- operators ----------------------------------------------------------------------------

    def _look_up(self) -> None:
        """Whatever the loop waits for, it looks at its orders."""
        self._front.wake()
        self.guarding.wake()

    async def _carry_out(self, action: RunAction) -> str:
        if isinstance(action, PauseRun):
            if self.guarding.pause is not None:
                raise LedgerError("the run is paused already.")
            await self.guarding.pause_at(self.version, action.why)
            return f"paused at version {self.version}"
        if isinstance(action, RollBack):
            there = {v for v in self._folder.kept() & self._front.published if v < self.version}
            if action.version not in there:
                raise missing_version(action.version, there)
            await self._return_to(action.version, by_operator=True)
            return f"version {self.version} has the weights of version {action.version}"
        published = await self._publish_now()
        return f"version {self.version} is published{'' if published else ' already'}"

    async def _evaluate(self, version: int, stop: trio.Event) -> None:
        """Reward on held-out prompts, by the nodes; given up when `stop` is set."""
        prompts = self._config.evaluation.prompts
        if not prompts:
            return
        if self._complete():
            self._do("evaluating")
        found = await _unless(stop, lambda: self._front.evaluate(version, prompts))
        if found is not None:
            self._take_note(found)
            await self._ledger.record_evaluation(found)
            self._wake()

    def _take_note(self, found: Evaluated) -> None:
        self.evaluated[found.version] = found
        self.evaluations[found.version] = found.all.reward

    async def _prune(self, good: float | None) -> None:
        """Keep the checkpoints that a lease may still name, the operator's own wish, and the one
        that a collapse would return to."""
        pinned = await self._ledger.decisions.pins()
        config, on_disk = self._config, self._folder.kept()
        kept = kept_versions(
            on_disk,
            newest=max(config.learner.keep_checkpoints, config.staleness + config.kappa + 2),
            published=self._front.published,
            good=None if good is None else int(good),
        )
        for old in on_disk - kept - pinned:
            await trio.to_thread.run_sync(shutil.rmtree, self._folder.checkpoint(old))


def metrics_of_all(
    trained: Trained, groups: Sequence[ScoredGroup], blank: Sequence[ScoredGroup]
) -> dict[str, float]:
    """An update's metrics, the rewards of the groups that it left out counted with the others."""
    rewards = [one.reward for group in (*groups, *blank) for one in group.rollouts]
    return trained.metrics | {
        "reward_mean": fmean(rewards),
        "reward_std": pstdev(rewards),
        "dropped_groups": float(len(blank)),
    }


def reward_error(groups: Sequence[ScoredGroup]) -> float:
    """Standard error of the mean reward: of groups, since answers to one prompt are alike."""
    means = [fmean(one.reward for one in group.rollouts) for group in groups]
    return stdev(means) / math.sqrt(len(means)) if len(means) > 1 else 0.0


async def _unless(stop: trio.Event, take: Callable[[], Awaitable[T]]) -> T | None:
    """What `take` returns, or None if `stop` is set first."""
    taken: T | None = None
    async with open_nursery() as nursery:

        async def watch() -> None:
            await stop.wait()
            nursery.cancel_scope.cancel()

        nursery.start_soon(watch)
        taken = await take()
        nursery.cancel_scope.cancel()
    return taken
