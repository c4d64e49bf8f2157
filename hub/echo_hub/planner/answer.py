"""What `echo-hub plan` answers, as values and as JSON."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from echo_hub.planner.capacity import Rule
from echo_hub.planner.fleet import Kind, unlimited
from echo_hub.planner.schedule import Prediction
from echo_hub.planner.system import Run

HUNDRED = 100


@dataclass(frozen=True)
class Option:
    """One answer: which nodes, with which S and kappa, and what comes of it."""

    counts: dict[str, int]
    run: Run
    rule: Rule
    prediction: Prediction
    transfer_s: float
    price: float
    """Money an hour, the learner's included."""

    @property
    def minutes(self) -> float:
        """For 100 updates."""
        return HUNDRED * self.prediction.seconds_per_update / 60

    @property
    def money(self) -> float:
        """For 100 updates."""
        return self.minutes / 60 * self.price if self.price else 0.0

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "nodes": self.counts,
            "staleness": self.run.staleness,
            "kappa": self.run.kappa,
            "minutes_per_100_updates": unlimited(self.minutes),
            "money_per_100_updates": unlimited(self.money),
            "idle_fraction": self.prediction.idle,
            "lag_mean": self.prediction.lag_mean,
            "lags": {str(lag): n for lag, n in sorted(self.prediction.lags.items())},
            "wasted": self.prediction.wasted,
            "rate": self.rule.rate,
            "rate_needed": unlimited(self.rule.rate_needed),
            "round_s": unlimited(self.rule.round_s),
            "slack_s": self.rule.slack_s,
            "broadcast_s": self.transfer_s,
            "limit": self.rule.limit,
        }


@dataclass(frozen=True)
class Baseline:
    """The operator's own cards doing both, by turns."""

    cards: str
    seconds_per_update: float
    price: float

    @property
    def minutes(self) -> float:
        """For 100 updates."""
        return HUNDRED * self.seconds_per_update / 60

    @property
    def money(self) -> float:
        """For 100 updates."""
        return self.minutes / 60 * self.price


@dataclass(frozen=True)
class Plan:
    """All that `echo-hub plan` shows."""

    best: Option
    alternatives: tuple[Option, ...]
    baseline: Baseline | None
    kinds: tuple[Kind, ...]
    enough: bool
    missing: str
    curve: tuple[tuple[int, float, float], ...]
    """Nodes, minutes and money for 100 updates, as nodes are added in order of price."""

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        base = self.baseline
        return {
            "enough": self.enough,
            "missing": self.missing,
            "plan": self.best.as_dict(),
            "alternatives": [option.as_dict() for option in self.alternatives],
            "colocated": None
            if base is None
            else {
                "cards": base.cards,
                "minutes_per_100_updates": base.minutes,
                "money_per_100_updates": base.money,
            },
            "cards": [
                {
                    "name": kind.name,
                    "count": kind.count,
                    "rollouts_per_s": kind.node.rate,
                    "price": kind.node.price,
                    "rate_source": kind.rate_source,
                    "price_source": kind.price_source,
                }
                for kind in self.kinds
            ],
            "curve": [
                {"nodes": nodes, "minutes": minutes, "money": unlimited(money)}
                for nodes, minutes, money in self.curve
                if not math.isinf(minutes)
            ],
        }
