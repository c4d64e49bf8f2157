"""Which nodes work: the cheapest set, hysteresis, turns, and estimates that survive nonsense."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echo_hub.planner.activation import Activation, Rules, hourly
from echo_hub.planner.cover import cheapest_set
from echo_hub.planner.estimators import Elapsed, Level, Rate
from echo_hub.planner.system import Node, Run

RUN = Run(groups=16, group_size=8, train_s=32.0, staleness=3, kappa=2, broadcast_s=5.0)
NEEDED = 4.0  # rollouts a second

money = st.one_of(st.just(0.0), st.floats(0.01, 5))
rate = st.one_of(st.just(0.0), st.floats(0.01, 5))


def best_by_trying(costs: list[float], rates: list[float], needed: float) -> float | None:
    """The least cost of all sets that do."""
    best = None
    for taken in itertools.product((False, True), repeat=len(costs)):
        if sum(itertools.compress(rates, taken)) >= needed:
            cost = sum(itertools.compress(costs, taken))
            best = cost if best is None else min(best, cost)
    return best


@settings(max_examples=60)
@given(items=st.lists(st.tuples(money, rate), max_size=10), share=st.floats(0.05, 1.1))
def test_the_set_is_the_optimum_of_few(items: list[tuple[float, float]], share: float) -> None:
    costs, rates = [cost for cost, _ in items], [speed for _, speed in items]
    needed = share * sum(rates) + 0.001
    found, best = cheapest_set(costs, rates, needed), best_by_trying(costs, rates, needed)
    if found is None:
        assert best is None
        return
    assert sum(rates[i] for i in found) >= needed * (1 - 1e-6)
    assert best is None or sum(costs[i] for i in found) <= best * (1 + 1e-6) + 1e-9


def test_fifteen_nodes_are_within_two_percent_of_the_optimum() -> None:
    rng = random.Random(3)
    costs, rates = ([rng.uniform(0.1, 3) for _ in range(15)] for _ in range(2))
    needed = 0.6 * sum(rates)
    found, best = cheapest_set(costs, rates, needed), best_by_trying(costs, rates, needed)
    assert found is not None
    assert best is not None
    assert sum(costs[i] for i in found) <= 1.02 * best


def test_many_nodes_cost_at_most_one_node_more_than_the_bound() -> None:
    rng = random.Random(4)
    costs, rates = ([rng.uniform(0.1, 3) for _ in range(2000)] for _ in range(2))
    needed = 0.4 * sum(rates)
    found = cheapest_set(costs, rates, needed)
    assert found is not None
    left, bound = needed, 0.0
    for i in sorted(range(2000), key=lambda i: costs[i] / rates[i]):
        share = min(1.0, left / rates[i])
        bound, left = bound + share * costs[i], left - share * rates[i]
        if left <= 0:
            break
    assert bound <= sum(costs[i] for i in found) <= bound * 1.001


def controller(nodes: list[Node], *, rules: Rules | None = None, run: Run = RUN) -> Activation:
    made = Activation(run, nodes, rules)
    for node in nodes:
        made.joined(node.key, 0.0)
    return made


def test_the_cheapest_that_suffice_work_and_volunteers_go_first() -> None:
    nodes = [Node(f"dear{i}", 1.0, price=2.0) for i in range(6)]
    nodes += [Node(f"cheap{i}", 1.0, price=0.5) for i in range(3)]
    nodes += [Node(f"free{i}", 1.0, watts=300) for i in range(2)]
    chosen = controller(nodes).decide(0.0)
    assert Counter(key.rstrip("0123456789") for key in chosen) == {"free": 2, "cheap": 3}


def test_of_volunteers_the_thriftiest() -> None:
    nodes = [Node("thirsty", 5.0, watts=900), Node("thrifty", 5.0, watts=100)]
    assert controller(nodes).decide(0.0) == {"thrifty"}
    assert hourly(Node("a", 1.0, watts=1000)) == pytest.approx(0.30)


def test_too_few_nodes_all_work_and_it_is_said() -> None:
    made = controller([Node("a", 1.0), Node("b", 0.0)])
    decision = made.decision(0.0)
    assert decision.active == {"a"}
    assert decision.missing == "rate"
    assert decision.needed == pytest.approx(NEEDED)


def test_a_node_too_slow_for_the_staleness_bound_is_not_asked() -> None:
    run = Run(groups=1, group_size=8, train_s=2.0, staleness=1, kappa=1, lease_s=1000)
    assert controller([Node("slow", 0.01)], run=run).decide(0.0) == frozenset()


def test_a_loss_is_made_good_at_once_and_a_return_changes_nothing_at_first() -> None:
    nodes = [Node(f"a{i}", 1.0, price=0.5) for i in range(5)]
    nodes += [Node(f"b{i}", 1.0, price=1.0) for i in range(5)]
    made = controller(nodes)
    first = made.decide(0.0)
    assert first == {f"a{i}" for i in range(5)}
    made.left("a0", 10.0)
    second = made.decide(10.0)
    assert len(second) == 5
    assert sum(key.startswith("b") for key in second) == 1
    made.joined("a0", 20.0)
    assert made.decide(20.0) == second
    for now in range(30, 300, 10):
        assert made.decide(float(now)) == second
    for now in range(300, 900, 10):
        last = made.decide(float(now))
    assert last == first


def test_noise_in_the_estimates_switches_no_node_twice_in_five_minutes() -> None:
    rng = random.Random(5)
    nodes = [Node(f"n{i}", 0.5, groups=2, price=rng.uniform(0.2, 1)) for i in range(20)]
    made = controller(nodes)
    before, switched = made.decide(0.0), []
    for step in range(1, 600):
        now = 10.0 * step
        for node in nodes:
            made.worked(node.key, 1, 16.0 * rng.lognormvariate(0, 0.4), now)
        after = made.decide(now)
        switched += [(now, key) for key in before ^ after]
        before = after
    last: dict[str, float] = {}
    for now, key in switched:
        assert now - last.get(key, -math.inf) >= 300 - 1e-6
        last[key] = now


def test_no_volunteer_waits_for_ever() -> None:
    rules = Rules(turn_s=600.0)
    nodes = [Node(f"v{i}", 2.0, watts=300) for i in range(9)]
    made = controller(nodes, rules=rules)
    worked = Counter[str]()
    for step in range(3000):
        worked.update(made.decide(10.0 * step))
    assert set(worked) == {node.key for node in nodes}
    assert min(worked.values()) > 0.3 * max(worked.values())


def test_a_clock_that_steps_neither_hurries_nor_stops_the_controller() -> None:
    nodes = [Node(f"n{i}", 1.0, price=1.0) for i in range(9)]
    made = controller(nodes)
    first = made.decide(0.0)
    for now in (-1e9, 1e12, 1e12 + 10, 5.0, math.nan, 20.0):
        assert made.decide(now) == first


@given(st.lists(st.floats(0.5, 2), min_size=5, max_size=9), st.floats(-1e12, 1e12))
def test_one_wild_sample_moves_a_level_no_further_than_its_neighbours(
    samples: list[float], wild: float
) -> None:
    level = Level(5)
    for sample in samples:
        level.add(sample)
    level.add(wild)
    level.add(math.nan)
    assert level.value is not None
    assert min(samples) <= level.value <= max(samples)


def test_a_lasting_change_is_followed() -> None:
    level = Level(5)
    for sample in (1.0,) * 5 + (1000.0,) * 3:
        level.add(sample)
    assert level.value == 1000.0


def test_a_rate_of_answers_that_come_in_bursts() -> None:
    estimate = Rate(block_s=10.0, blocks=5)
    assert estimate.value is None
    for _ in range(20):
        estimate.add(8, 16.0)
        for _ in range(3):
            estimate.add(8, 0.0)
    assert estimate.value == pytest.approx(2.0, rel=0.2)
    for busy, work in ((-5.0, 8.0), (1e9, 8.0), (math.nan, 8.0), (5.0, math.inf), (5.0, -1.0)):
        estimate.add(work, busy)
    assert estimate.value == pytest.approx(2.0, rel=0.2)


def test_elapsed_ignores_steps() -> None:
    clock = Elapsed(most=100.0)
    assert [clock.since(now) for now in (5.0, 8.0, 2.0, 3.0, 1e6, 1e6 + 1)] == [0, 3, 0, 1, 0, 1]
