"""A run and its fleet in numbers: what the capacity model, the planner and the simulator share.

Units: seconds, bytes, bytes a second, rollouts a second, money an hour. Every number is checked
when it is set, so that nothing below has to ask whether a rate is negative or a price is NaN.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist

from echo_p2p.errors import ConfigError

UNLIMITED = float("inf")
_QUANTILES = 400


def check_number(name: str, value: float, *, least: float = 0.0, above: bool = False) -> None:
    """ConfigError unless `value` is a number of at least (or, with `above`, over) `least`."""
    if math.isnan(value) or value < least or (above and value == least):
        bound = f"over {least:g}" if above else f"at least {least:g}"
        raise ConfigError(f"{name} is {value:g}: a number {bound} is wanted.")


@dataclass(frozen=True)
class Node:
    """One node as the planner sees it.

    Attributes:
        key: names it; unique in a fleet.
        rate: rollouts a second when it is kept busy; 0 is a node that does nothing.
        groups: groups it works on at the same time.
        price: money an hour while it is active; 0 for a volunteer.
        up, down: bytes a second of its link.
        watts: electrical power while it works; orders volunteers, who have no price.
    """

    key: str
    rate: float
    groups: int = 1
    price: float = 0.0
    up: float = UNLIMITED
    down: float = UNLIMITED
    watts: float = 0.0

    def __post_init__(self) -> None:
        for name in ("rate", "price", "up", "watts"):
            check_number(f"{name} of {self.key}", getattr(self, name))
        check_number(f"down of {self.key}", self.down, above=True)
        check_number(f"groups of {self.key}", self.groups, least=1)
        for name in ("rate", "price", "watts"):
            if math.isinf(getattr(self, name)):
                raise ConfigError(f"{name} of {self.key} is infinite.")


@dataclass(frozen=True)
class Churn:
    """Coming and going: a node stays for `stay_s` on average and is away for `away_s`.

    `silent` is the share of departures without a word, whose leases stay out until they expire.
    """

    stay_s: float = UNLIMITED
    away_s: float = 0.0
    silent: float = 1.0

    def __post_init__(self) -> None:
        check_number("churn.stay_s", self.stay_s, above=True)
        check_number("churn.away_s", self.away_s)
        check_number("churn.silent", self.silent)
        if self.silent > 1:
            raise ConfigError(f"churn.silent is {self.silent:g}: it is a share, at most 1.")

    @property
    def present(self) -> float:
        """Share of the time that a node is there."""
        return 1.0 if math.isinf(self.stay_s) else self.stay_s / (self.stay_s + self.away_s)


@dataclass(frozen=True)
class Run:
    """What a run asks of its fleet.

    Attributes:
        groups: B, groups in one update.
        group_size: G, rollouts in a group; R = B * G.
        train_s: T_train, seconds of one update, with commit and publication.
        staleness, kappa: S, and updates between published versions.
        artifact: bytes of a published version, as broadcast.
        hub_up: bytes a second that the hub may send.
        broadcast_s: T_bcast as measured; None predicts it from the links.
        check_s: from a group's arrival until it may be trained on (reward, audit).
        rejected: share of groups that fail a check.
        pauses: nodes do not generate while they download.
        lease_s: how long a lease lasts.
        spread: standard deviation of an answer's length, in means of it.
    """

    groups: int
    group_size: int
    train_s: float
    staleness: int
    kappa: int
    artifact: float = 0.0
    hub_up: float = UNLIMITED
    broadcast_s: float | None = None
    check_s: float = 0.0
    rejected: float = 0.0
    pauses: bool = False
    lease_s: float = 300.0
    spread: float = 0.5

    def __post_init__(self) -> None:
        for name in ("groups", "group_size", "kappa"):
            check_number(name, getattr(self, name), least=1)
        for name in ("staleness", "artifact", "check_s", "rejected", "spread"):
            check_number(name, getattr(self, name))
        for name in ("train_s", "hub_up", "lease_s"):
            check_number(name, getattr(self, name), above=True)
        if self.broadcast_s is not None:
            check_number("broadcast_s", self.broadcast_s)
        if self.rejected >= 1:
            raise ConfigError("every group is rejected: no fleet is large enough for that.")
        if self.kappa > max(1, self.staleness):
            raise ConfigError(
                f"kappa {self.kappa} is more than a staleness of {self.staleness} allows.",
                fix="Publish at least every max(1, S) updates.",
            )

    @property
    def rollouts(self) -> int:
        """R, rollouts in one update."""
        return self.groups * self.group_size


def broadcast_bound(
    size: float, *, hub_up: float, ups: Sequence[float], downs: Sequence[float]
) -> float:
    """Least seconds in which every node can have `size` bytes that the hub has.

    `max(F / u_hub, F / d_min, N F / (u_hub + sum u_i))`: all bytes leave the hub once; the slowest
    link takes them in; and all uploads together carry N copies (Mundinger, Weber and Weiss,
    "Optimal scheduling of peer-to-peer file dissemination", 2008).
    """
    if not ups or not size:
        return 0.0
    return max(size / hub_up, size / min(downs), len(ups) * size / (hub_up + sum(ups)))


def broadcast_s(run: Run, nodes: Sequence[Node]) -> float:
    """T_bcast to these nodes: as measured, or what the bound predicts."""
    if run.broadcast_s is not None:
        return run.broadcast_s if nodes else 0.0
    return broadcast_bound(
        run.artifact,
        hub_up=run.hub_up,
        ups=[node.up for node in nodes],
        downs=[node.down for node in nodes],
    )


def group_seconds(run: Run, node: Node) -> float:
    """Mean seconds from a group's start to its end on a busy node.

    Little's law: `groups` in work at a throughput of `rate / G` groups a second.
    """
    return node.groups * run.group_size / node.rate if node.rate else UNLIMITED


@cache
def longest_of(count: int, spread: float) -> tuple[float, float]:
    """Mean and standard deviation of the longest of `count` answers, in means of one.

    Answers' lengths are log-normal with a coefficient of variation of `spread`. The maximum's
    quantile at u is one answer's quantile at u ** (1 / count); both moments are sums over it.
    """
    sigma = math.sqrt(math.log1p(spread * spread))
    normal = NormalDist()
    values = [
        math.exp(
            sigma * normal.inv_cdf(((step + 0.5) / _QUANTILES) ** (1 / count)) - sigma * sigma / 2
        )
        for step in range(_QUANTILES)
    ]
    mean = sum(values) / _QUANTILES
    return mean, math.sqrt(sum((value - mean) ** 2 for value in values) / _QUANTILES)
