"""`echo-hub plan`: from a run's settings and a fleet to how many of what.

For each S and kappa that may be used, the cheapest set of nodes that satisfies the capacity rule
with head-room; of these the cheapest, with the smallest S; then checked by the recursion of
`schedule`, and given more head-room until the learner's predicted idle share is small enough.
Alternatives are the cheapest answers that use other kinds of cards. Beside them stands the
co-located baseline: the operator's own cards generate and train by turns, with nothing lost in
between, which is the best such a set-up can do.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from echo_hub.config import RunConfig
from echo_hub.planner.activation import hourly
from echo_hub.planner.answer import HUNDRED, Baseline, Option, Plan
from echo_hub.planner.capacity import Rule, in_time, least_staleness, rule, spacing, survival
from echo_hub.planner.cover import cheapest_set
from echo_hub.planner.fleet import (
    Fleet,
    Kind,
    answer_tokens,
    base_run,
    churn_of,
    kinds_of,
    known_cards,
    price_of,
    tokens_rate,
)
from echo_hub.planner.schedule import predict
from echo_hub.planner.system import Churn, Node, Run, broadcast_s, group_seconds

_TRIES = 5
_STEP = 1.12
_CHECKED_UPDATES = 75


def make_plan(config: RunConfig, fleet: Fleet) -> Plan:
    """The plan for a run and a fleet; ConfigError if a number is missing."""
    kinds, churn = kinds_of(config, fleet), churn_of(fleet)
    runs = [base_run(config, fleet, staleness=s, kappa=k) for s, k in _windows(config, fleet)]
    planner = _Planner(runs, churn, fleet)
    best = planner.best(kinds)
    enough = best.prediction.idle <= fleet.plan.idle
    others: dict[tuple[tuple[str, int], ...], Option] = {}
    if enough:
        for pool in _other_pools(kinds, best):
            option = planner.best(pool)
            if option.prediction.idle <= fleet.plan.idle:
                others[tuple(sorted(option.counts.items()))] = option
        others.pop(tuple(sorted(best.counts.items())), None)
    return Plan(
        best=best,
        alternatives=tuple(sorted(others.values(), key=lambda option: option.money)[:2]),
        baseline=_baseline(config, fleet),
        kinds=tuple(kinds),
        enough=enough,
        missing="" if enough else _missing(best, kinds),
        curve=tuple(planner.curve(kinds, best)),
    )


def _windows(config: RunConfig, fleet: Fleet) -> list[tuple[int, int]]:
    """Every S and kappa to consider: smallest S first, the usual kappa of each S first."""
    if config.run.mode == "sequential":
        return [(0, 1)]
    windows = []
    for staleness in range(1, max(1, fleet.plan.max_staleness) + 1):
        usual = max(1, staleness - 1)
        kappas = [usual, *(k for k in range(1, staleness + 1) if k != usual)]
        windows += [(staleness, kappa) for kappa in kappas]
    return windows


def _other_pools(kinds: Sequence[Kind], best: Option) -> Iterator[list[Kind]]:
    """Fleets without one kind that the best answer uses, and of one kind alone."""
    used = {kind.node.key for kind in kinds if best.counts.get(kind.node.key)}
    for key in sorted(used):
        yield [kind for kind in kinds if kind.node.key != key]
    for kind in kinds:
        yield [kind]


def _missing(option: Option, kinds: Sequence[Kind]) -> str:
    told = option.rule
    quickest = min(group_seconds(option.run, kind.node) for kind in kinds)
    if quickest > option.run.lease_s / 2:
        return (
            f"lease time: the quickest card takes {quickest:.3g} s for a group, and a node is "
            "given only what it can answer in half of lease.seconds = "
            f"{option.run.lease_s:g}. Raise that, or generate fewer answers at a time (at_a_time)."
        )
    if told.rate < told.rate_needed:
        return (
            f"rate: {told.rate:.3g} of {told.rate_needed:.3g} rollouts/s. Add nodes, or accept "
            f"that the learner waits {option.prediction.idle:.0%} of the time."
        )
    apart = spacing(replace(option.run, kappa=1), option.transfer_s)
    least = least_staleness(told.round_s, option.run.train_s, apart)
    return (
        f"latency: a version's way round takes {told.round_s:.3g} s, and S = "
        f"{option.run.staleness} leaves {told.slack_s:.3g} s. Allow S = {least} "
        "(plan.max_staleness), use faster links, or generate fewer answers at a time (at_a_time)."
    )


class _Planner:
    def __init__(self, runs: Sequence[Run], churn: Churn, fleet: Fleet) -> None:
        self._runs, self._churn, self._fleet = runs, churn, fleet
        learner = fleet.learner
        self._learner_price = learner.count * _learner_price(fleet)
        self._idle, self._headroom = fleet.plan.idle, fleet.plan.headroom

    def best(self, kinds: Sequence[Kind]) -> Option:
        """The cheapest answer whose predicted idle share is small enough, or the least idle one."""
        chosen = [(run, self._choose(run, kinds, 1.0)) for run in self._runs]
        told = [(run, nodes, rule(run, nodes, self._churn)) for run, nodes in chosen]
        told.sort(key=lambda one: (not one[2].holds, self._money(one[1], one[2])))
        fallback: Option | None = None
        for run, nodes, _ in told[:_TRIES]:
            option = self._settle(run, kinds, nodes)
            if option.prediction.idle <= self._idle:
                return option
            if fallback is None or option.prediction.idle < fallback.prediction.idle - 0.01:
                fallback = option
        assert fallback is not None
        return fallback

    def _settle(self, run: Run, kinds: Sequence[Kind], nodes: list[Node]) -> Option:
        """More head-room until the recursion agrees, or all nodes are in."""
        option = self._option(run, nodes)
        extra = 1.0
        while option.prediction.idle > self._idle and option.rule.limit == "rate" and extra < 2:
            extra *= _STEP
            more = self._choose(run, kinds, extra)
            if len(more) > len(nodes):
                nodes, option = more, self._option(run, more)
        return option

    def _choose(self, run: Run, kinds: Sequence[Kind], extra: float) -> list[Node]:
        """The cheapest nodes that reach the rate, with head-room; all of them if none do."""
        every = [node for kind in kinds for node in [kind.node] * kind.count]
        transfer = broadcast_s(run, every)
        able = [n for n in every if in_time(run, n.rate, n.groups, transfer)] or every
        rates = [(1 - run.rejected) * n.rate * survival(run, n, self._churn) for n in able]
        needed = rule(run, able, self._churn).rate_needed * (1 + self._headroom) * extra
        found = None
        if not math.isinf(needed):
            found = cheapest_set([hourly(node) for node in able], rates, needed)
        return able if found is None else [able[index] for index in sorted(found)]

    def _money(self, nodes: Sequence[Node], told: Rule) -> float:
        return told.seconds_per_update * (self._learner_price + sum(n.price for n in nodes))

    def _option(self, run: Run, nodes: Sequence[Node]) -> Option:
        named = [replace(node, key=f"{node.key}/{i}") for i, node in enumerate(nodes)]
        return Option(
            counts=dict(Counter(node.key for node in nodes)),
            run=run,
            rule=rule(run, nodes, self._churn),
            prediction=predict(run, named, self._churn, updates=_CHECKED_UPDATES),
            transfer_s=broadcast_s(run, nodes),
            price=self._learner_price + sum(node.price for node in nodes),
        )

    def curve(
        self, kinds: Sequence[Kind], best: Option, points: int = 12
    ) -> Iterator[tuple[int, float, float]]:
        """Time and money as nodes are added, by the closed forms, with the answer's S and kappa."""
        every = [node for kind in kinds for node in [kind.node] * kind.count]
        every.sort(key=lambda node: hourly(node) / node.rate)
        most = min(len(every), max(points, 3 * sum(best.counts.values())))
        counts = sorted({max(1, round(most * (i + 1) / points)) for i in range(points)})
        for count in counts:
            told = rule(best.run, every[:count], self._churn)
            minutes = HUNDRED * told.seconds_per_update / 60
            yield count, minutes, HUNDRED * self._money(every[:count], told) / 3600


def _learner_price(fleet: Fleet) -> float:
    learner = fleet.learner
    if learner.price is not None or learner.card is None:
        return learner.price or 0.0
    row = known_cards().get(learner.card.lower())
    return price_of(learner.card, None, row)[0]


def _baseline(config: RunConfig, fleet: Fleet) -> Baseline | None:
    """The learner's cards alone; None if nothing is said of them."""
    learner = fleet.learner
    if learner.card is None:
        return None
    row = known_cards().get(learner.card.lower())
    tokens, _ = tokens_rate(learner.card, learner.tokens_per_s, row, fleet)
    rate = learner.count * tokens / answer_tokens(config, fleet) * (1 - fleet.work.rejected)
    rollouts = config.learner.groups_per_update * config.sampling.group_size
    return Baseline(
        cards=f"{learner.count} x {learner.card}",
        seconds_per_update=learner.train_s + rollouts / rate,
        price=learner.count * _learner_price(fleet),
    )
