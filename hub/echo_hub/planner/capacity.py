"""The overlap capacity model: from a run and its fleet to the learner's idle time. Pure.

Two levels, both derived in docs/planning.md:

- `rule`, here: closed forms. The learner never waits if nodes are fast enough (`rate_needed`) and
  if a version's way round, from publication to a batch sampled from it, fits into what the lease
  rule leaves for it (`slack_s`). Where either fails, an update takes the largest of three periods:
  T_train, the rate's and the latency's.
- `schedule.predict`: the same without its simplifications, as a recursion over updates. It gives
  idle fraction, lags and waste.

Extends ECHO-2 (arXiv 2602.02192), whose rule is `T_bcast + kappa R / sum(mu) <= kappa T_train`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from echo_hub.planner.system import (
    UNLIMITED,
    Churn,
    Node,
    Run,
    broadcast_s,
    group_seconds,
    longest_of,
)


@dataclass(frozen=True)
class Rule:
    """What the closed forms say of a run and a fleet. Seconds, rollouts a second."""

    rate: float
    """Rollouts a second that count: of nodes that are there, not rejected, not lost."""
    rate_needed: float
    """Least such rate with which the learner never waits; infinite if none is enough."""
    round_s: float
    """From a version's publication until a batch sampled from it is ready: T_bcast, the slowest
    way through the nodes, and the checks."""
    slack_s: float
    """What the lease rule leaves for that: (S + 1 - spacing) T_train."""
    by_rate_s: float
    """Seconds an update takes if nodes are the limit."""
    by_latency_s: float
    """Seconds an update takes if the staleness bound is the limit."""
    seconds_per_update: float
    """The largest of T_train, `by_rate_s` and `by_latency_s`."""

    @property
    def holds(self) -> bool:
        """The learner never waits."""
        return self.rate >= self.rate_needed and self.round_s <= self.slack_s

    @property
    def limit(self) -> str:
        """What an update's time is decided by: `learner`, `rate` or `latency`."""
        times = {
            "learner": self.seconds_per_update,
            "rate": self.by_rate_s,
            "latency": self.by_latency_s,
        }
        if self.by_rate_s < self.seconds_per_update > self.by_latency_s:
            return "learner"
        return max(("latency", "rate"), key=times.__getitem__)


def survival(run: Run, node: Node, churn: Churn) -> float:
    """Share of a node's nominal rate that arrives, for its coming and going.

    It is there a share of the time, of each stay it first downloads, and what it has in hand when
    it leaves is lost: a group that takes L survives with exp(-L / stay).
    """
    if math.isinf(churn.stay_s):
        return 1.0
    joining = min(1.0, broadcast_s(run, [node]) / churn.stay_s)
    lost = math.exp(-group_seconds(run, node) / churn.stay_s) if node.rate else 0.0
    return churn.present * (1 - joining) * lost


def stuck_groups(run: Run, nodes: Sequence[Node], churn: Churn) -> float:
    """Groups whose node left without a word, and whose leases have not expired yet, on average."""
    if math.isinf(churn.stay_s):
        return 0.0
    held = sum(node.groups for node in nodes if node.rate) * churn.present
    return held * churn.silent * min(run.lease_s / churn.stay_s, 1.0)


def effective_rate(run: Run, nodes: Sequence[Node], churn: Churn | None = None) -> float:
    """Rollouts a second that pass every check: the sum over nodes, less churn and rejection."""
    churn = churn or Churn()
    return (1 - run.rejected) * sum(node.rate * survival(run, node, churn) for node in nodes)


def longest_group_s(run: Run, transfer_s: float) -> float:
    """What a group may take for its version not to be too old when it is trained on.

    And half of a lease's time, since the lease book gives slower nodes less work.
    """
    if not run.staleness:
        return run.lease_s / 2
    fresh = (run.staleness + 1) * run.train_s - run.check_s - transfer_s
    return min(fresh, run.lease_s / 2)


def in_time(run: Run, rate: float, groups: int, transfer_s: float) -> bool:
    """Can a node of this rate, with so many groups in work, answer early enough?"""
    return rate > 0 and groups * run.group_size <= rate * longest_group_s(run, transfer_s)


def rate_needed(run: Run, transfer_s: float) -> float:
    """Least effective rate, in rollouts a second, that keeps the learner busy.

    With `pauses`, ECHO-2's rule solved for the rate: kappa R / (kappa T_train - T_bcast). Without,
    nodes generate while they download, and it is R / T_train whatever the broadcast takes.
    """
    if not run.pauses:
        return run.rollouts / run.train_s
    left = run.kappa * run.train_s - transfer_s
    return run.kappa * run.rollouts / left if left > 0 else UNLIMITED


def spacing(run: Run, transfer_s: float) -> int:
    """Updates between the versions that a node gets: kappa, or more if it cannot keep up.

    Nodes take one version after the other, the newest there is; so if a download takes longer than
    kappa T_train, they skip some.
    """
    return run.kappa * max(1, math.ceil(transfer_s / (run.kappa * run.train_s) - 1e-9))


def least_staleness(round_s: float, train_s: float, kappa: int) -> int:
    """Least S with which a round of `round_s` is hidden: round_s <= (S + 1 - kappa) T_train.

    `kappa` is the spacing, where nodes cannot keep up with kappa.
    """
    if math.isinf(round_s):
        raise ValueError("no staleness hides an endless round")
    return max(kappa - 1 + math.ceil(round_s / train_s - 1e-9), kappa if kappa > 1 else 0)


def rule(run: Run, nodes: Sequence[Node], churn: Churn | None = None) -> Rule:
    """The closed forms for this fleet."""
    churn = churn or Churn()
    working = [node for node in nodes if node.rate]
    rate = effective_rate(run, working, churn)
    if not rate:
        return Rule(0.0, rate_needed(run, 0.0), UNLIMITED, 0.0, UNLIMITED, UNLIMITED, UNLIMITED)
    transfer = broadcast_s(run, working)
    by_rate = run.rollouts / rate + (transfer / run.kappa if run.pauses else 0.0)
    round_s = transfer + max(_last_of_batch_s(run, working), run.rollouts / rate) + run.check_s
    staleness = run.staleness - stuck_groups(run, working, churn) / run.groups
    apart = spacing(run, transfer)
    by_latency = _latency_period(run, round_s, staleness, apart)
    return Rule(
        rate=rate,
        rate_needed=rate_needed(run, transfer),
        round_s=round_s,
        slack_s=max(0.0, staleness + 1 - apart) * run.train_s,
        by_rate_s=by_rate,
        by_latency_s=by_latency,
        seconds_per_update=max(run.train_s, by_rate, by_latency),
    )


def _last_of_batch_s(run: Run, nodes: Sequence[Node]) -> float:
    """Seconds until B of the groups that nodes start together are done.

    In sequential mode all B must be; else others, begun as early, stand in for the slowest.
    """
    mean, deviation = longest_of(run.group_size, run.spread)
    slots = sum(node.groups for node in nodes)
    together = min(slots, max(1, run.staleness + 2 - run.kappa) * run.groups)
    rank = min(run.groups, together) / (together + 1)
    sigma = math.sqrt(math.log1p((deviation / mean) ** 2))
    factor = math.exp(sigma * NormalDist().inv_cdf(rank) - sigma * sigma / 2)
    times = sorted((group_seconds(run, node), node.groups) for node in nodes)
    wanted, seen = rank * slots, 0.0
    for seconds, groups in times:
        seen += groups
        if seen >= wanted:
            return max(seconds, factor * sum(s * g for s, g in times) / slots)
    return times[-1][0] * factor


def _latency_period(run: Run, round_s: float, staleness: float, apart: int) -> float:
    """Seconds an update takes if the way round is the limit: the mean of the critical cycle.

    The batch that is hardest to have, S + 2 - spacing updates after a version, takes `round_s` and
    one update; from there to the next version that nodes get it is `extra` updates of T_train.
    """
    steps = staleness + 2 - apart
    if steps <= 0:
        return UNLIMITED
    extra = -math.floor(steps + 1e-9) % apart
    return (round_s + (1 + extra) * run.train_s) / (steps + extra)
