"""The learner's loop: take a batch, update, commit, publish, evaluate.

Order within one update, each step durable before the next: the checkpoint folder appears whole;
the ledger commits the update together with the groups it consumed; the version is recorded as
published; it is announced. A kill between any two steps is repaired by `prepare`: an uncommitted
checkpoint is made again from the same groups, an unpublished version is published.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, pstdev
from typing import Any, TypeVar

import msgspec
import trio

from echo_hub.buffer import ScoredGroup
from echo_hub.checks import Code
from echo_hub.config import RunConfig
from echo_hub.curriculum import by_task
from echo_hub.evaluation import Evaluated
from echo_hub.front import Front
from echo_hub.learner.client import Learner, Spent
from echo_hub.learner.messages import Trained
from echo_hub.ledger import Ledger, Recovered
from echo_hub.paths import RunFolder
from echo_hub.publisher import Publisher
from echo_p2p.errors import LearnerError
from echo_p2p.nursery import open_nursery

log = logging.getLogger(__name__)

T = TypeVar("T")

TRAIN_DEADLINE_S = 3600.0
REFUSALS_IN_A_ROW = 3
"""Updates the learner may refuse one after the other before the run is stopped."""


@dataclass(frozen=True)
class UpdateFacts:
    """One update as displays and programs see it. Times in seconds, lags in versions.

    `tasks`: by name, the metrics of the groups scored since the update before (`TaskMeters`).
    `period_s` is the time since the update before (of the first, since the loop began), and `spent`
    what the learner process did in it.
    """

    version: int
    reward: float
    lag_mean: float
    lag_max: int
    waited_s: float
    train_s: float
    tasks: dict[str, dict[str, float]]
    period_s: float
    spent: Spent

    def as_dict(self) -> dict[str, Any]:
        facts: dict[str, Any] = asdict(self)
        spent: dict[str, float] = facts.pop("spent")
        return facts | spent


@dataclass(frozen=True)
class Shares:
    """What became of the learner's time: shares that add up to 1.

    Auditing is no waiting, but no training either; publishing is the hub's work, so that a learner
    which stands still meanwhile waits.
    """

    training: float = 0.0
    auditing: float = 0.0
    waiting: float = 0.0

    @classmethod
    def of(cls, updates: Sequence[UpdateFacts]) -> Shares:
        """Over some updates; all zero if there are none."""
        total = sum(update.period_s for update in updates)
        if not total:
            return cls()
        training = sum(update.spent.training_s for update in updates) / total
        auditing = sum(update.spent.auditing_s for update in updates) / total
        return cls(training, auditing, max(0.0, 1.0 - training - auditing))


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
        self._refusals = 0
        self._counted, self._spent = self._since, learner.spent
        self._config = config
        self._folder = folder
        self._front = front
        self._learner = learner
        self._ledger = ledger
        self._publisher = publisher

    @property
    def shares(self) -> Shares:
        """Of the time from the second update on: the first waits for nodes to join."""
        return Shares.of(self.history[1:])

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
        for one in recovered.evaluated:
            self._take_note(one)
        self._evaluated_at = max(self.evaluated, default=0)
        adapter = self._folder.adapter(self.version)
        if recovered.published is not None and recovered.published.version == self.version:
            await self._publisher.resume(self.version, recovered.published.envelope, adapter)
        else:
            await self._publisher.publish(self.version, adapter)
        self._front.advance(self.version, published=True)

    async def run(self, stop: trio.Event) -> None:
        """Train until the configured number of updates, or until `stop` is set."""
        async with open_nursery() as nursery:
            if self.version == 0 and 0 not in self.evaluations:
                nursery.start_soon(self._evaluate, 0, stop)
            while not self._complete() and not stop.is_set():
                if not await self._update(stop):
                    break
                if self._evaluation_is_due():
                    self._evaluated_at = self.version
                    nursery.start_soon(self._evaluate, self.version, stop)
        await self._publish_now()
        if self._complete() and not stop.is_set():
            self._front.close_training()
            if self.version not in self.evaluations:
                await self._evaluate(self.version, stop)
            self._front.complete()

    def _evaluation_is_due(self) -> bool:
        """Is this the first published version since a multiple of `evaluation.every`?"""
        every, latest = self._config.evaluation.every, self._publisher.latest
        if not every or self._complete() or latest is None or latest.version != self.version:
            return False
        return self.version // every > self._evaluated_at // every

    def _complete(self) -> bool:
        return 0 < self._config.run.updates <= self.version

    async def _update(self, stop: trio.Event) -> bool:
        """One update; False if `stop` was set while waiting for its batch."""
        started = time.monotonic()
        self._do("waiting for rollouts")
        groups = await _unless(stop, self._front.take_batch)
        if groups is None:
            self._do("stopping")
            return False
        ready = time.monotonic()
        self._do("training")
        try:
            trained = await self._learner.train(
                self.version,
                [group.for_learner() for group in groups],
                out=self._folder.checkpoint(self.version + 1),
                deadline_s=TRAIN_DEADLINE_S,
            )
        except LearnerError as error:
            await self._refused(groups, error)
            return True
        self._refusals = 0
        blank = await self._front.take_blank()
        if blank:
            trained = msgspec.structs.replace(
                trained, metrics=metrics_of_all(trained, groups, blank)
            )
        tasks = self._front.task_metrics()
        await self._ledger.commit_update(
            trained.version,
            [group.group_id for group in (*groups, *blank)],
            trained.metrics | tasks,
        )
        self.version = trained.version
        due = self.version % self._config.kappa == 0 or self._complete()
        if due:
            await self._publisher.publish(self.version, self._folder.adapter(self.version))
        self._front.advance(self.version, published=due)
        now = time.monotonic()
        spent, period_s = self._learner.spent - self._spent, now - self._counted
        self._spent, self._counted = self._learner.spent, now
        waited_s, train_s = ready - started, now - ready
        self.history.append(_facts(trained, waited_s, train_s, period_s, spent, tasks))
        self._wake()
        await self._prune()
        return True

    async def _refused(self, groups: Sequence[ScoredGroup], error: LearnerError) -> None:
        """Drop a batch that the learner would not step on; give up after several in a row."""
        self._refusals += 1
        log.error("update %d was refused and its batch dropped: %s", self.version + 1, error)
        await self._front.drop_groups(groups, Code.LEARNER_REFUSED)
        if self._refusals >= REFUSALS_IN_A_ROW:
            raise LearnerError(
                f"{self._refusals} updates in a row were refused, the last one because: {error}",
                fix="Lower learner.learning_rate, or look at the rewards of the task.",
            ) from error

    async def _publish_now(self) -> None:
        latest = self._publisher.latest
        if latest is None or latest.version < self.version:
            await self._publisher.publish(self.version, self._folder.adapter(self.version))
            self._front.advance(self.version, published=True)

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

    async def _prune(self) -> None:
        """Keep the checkpoints that a lease may still name, and the operator's own wish."""
        config = self._config
        keep = max(config.learner.keep_checkpoints, config.staleness + config.kappa + 2)
        for old in sorted(self._folder.checkpoints.glob("v[0-9]*"))[:-keep]:
            await trio.to_thread.run_sync(shutil.rmtree, old)


def _facts(
    trained: Trained,
    waited_s: float,
    train_s: float,
    period_s: float,
    spent: Spent,
    tasks: dict[str, float],
) -> UpdateFacts:
    metrics = trained.metrics
    return UpdateFacts(
        version=trained.version,
        reward=metrics["reward_mean"],
        lag_mean=metrics["lag_mean"],
        lag_max=int(metrics["lag_max"]),
        waited_s=waited_s,
        train_s=train_s,
        period_s=period_s,
        spent=spent,
        tasks=by_task(tasks),
    )


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
