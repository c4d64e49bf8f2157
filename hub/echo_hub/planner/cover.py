"""The cheapest set of nodes whose rates reach what is needed: a covering knapsack. Pure.

Nodes are taken by price per rollout until the rate is reached; what that leaves to gain is in the
last few choices, which are searched by branch and bound around the point where the greedy set
reaches the rate (the core of the knapsack, after Balas and Zemel, 1980, and Pisinger's minimal
core). With up to `EXACT` nodes the core is everything and the answer is the optimum; with more, the
search is bounded, and what is lost to the optimum is at most a fraction of one node's price.
"""

from __future__ import annotations

from collections.abc import Sequence

EXACT = 15
_CORE = 24
_STEPS = 1500
_TINY = 1e-9


def cheapest_set(
    costs: Sequence[float], rates: Sequence[float], needed: float
) -> frozenset[int] | None:
    """Indices of the cheapest set with a total rate of at least `needed`; None if all do not do.

    Entries without a positive rate are never taken. Costs are not negative.
    """
    if needed <= 0:
        return frozenset()
    usable = [i for i, rate in enumerate(rates) if rate > 0]
    if sum(rates[i] for i in usable) < needed * (1 - _TINY):
        return None
    density = {i: costs[i] / rates[i] for i in usable}
    order = sorted(usable, key=density.__getitem__)
    reach, critical = 0.0, -1
    while reach < needed * (1 - _TINY) and critical + 1 < len(order):
        critical += 1
        reach += rates[order[critical]]
    exact = len(order) <= EXACT
    low = 0 if exact else max(0, critical - _CORE // 2)
    high = len(order) if exact else min(len(order), critical + _CORE // 2)
    fixed = order[:low]
    left = needed * (1 - _TINY) - sum(rates[i] for i in fixed)
    core = [(costs[i], rates[i]) for i in order[low:high]]
    greedy = list(range(critical + 1 - low))
    best = _Search(core, left, None if exact else _STEPS).best(greedy)
    chosen = [order[low + position] for position in best]
    return frozenset([*fixed, *_without_needless(chosen, costs, rates, left)])


def _without_needless(
    chosen: Sequence[int], costs: Sequence[float], rates: Sequence[float], needed: float
) -> list[int]:
    """The set without nodes that it does not need, the dearest out first."""
    spare = sum(rates[i] for i in chosen) - needed
    kept = []
    for index in sorted(chosen, key=lambda i: -costs[i]):
        if rates[index] <= spare:
            spare -= rates[index]
        else:
            kept.append(index)
    return kept


class _Search:
    """Depth-first branch and bound; items are in order of price per rollout."""

    def __init__(
        self, items: Sequence[tuple[float, float]], needed: float, steps: int | None
    ) -> None:
        self._items, self._needed, self._steps = items, needed, steps
        self._tails = [0.0] * (len(items) + 1)
        self._next = list(range(1, len(items) + 1))
        for i in range(len(items) - 1, -1, -1):
            self._tails[i] = self._tails[i + 1] + items[i][1]
            if i + 1 < len(items) and items[i] == items[i + 1]:
                self._next[i] = self._next[i + 1]

    def best(self, start: list[int]) -> list[int]:
        """The best set found, beginning with one that does."""
        found, found_cost = start, sum(self._items[i][0] for i in start)
        stack: list[tuple[int, float, float, tuple[int, ...]]] = [(0, self._needed, 0.0, ())]
        steps = 0
        while stack and (self._steps is None or steps < self._steps):
            steps += 1
            at, left, cost, taken = stack.pop()
            if left <= 0:
                if cost < found_cost:
                    found, found_cost = list(taken), cost
                continue
            if self._tails[at] < left or cost + self._bound(at, left) >= found_cost * (1 - _TINY):
                continue
            price, rate = self._items[at]
            stack.append((self._next[at], left, cost, taken))  # without it, nor others like it
            stack.append((at + 1, left - rate, cost + price, (*taken, at)))
        return found

    def _bound(self, at: int, left: float) -> float:
        """Least cost of covering `left` with the items from `at` on, if they could be divided."""
        cost = 0.0
        for price, rate in self._items[at:]:
            if rate >= left:
                return cost + price * left / rate
            left -= rate
            cost += price
        return cost
