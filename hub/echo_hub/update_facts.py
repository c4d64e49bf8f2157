"""What displays and programs are told of an update. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from echo_hub.learner.client import Spent
from echo_hub.learner.messages import Trained
from echo_hub.rollouts.curriculum import by_task


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


def facts_of(
    trained: Trained,
    waited_s: float,
    train_s: float,
    period_s: float,
    spent: Spent,
    tasks: dict[str, float],
) -> UpdateFacts:
    """The facts of an update that the learner made and the ledger has."""
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
