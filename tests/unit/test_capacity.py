"""The capacity model: closed forms, the recursion, and both against the simulator."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo_hub.planner.activation import Activation
from echo_hub.planner.capacity import effective_rate, least_staleness, rate_needed, rule, spacing
from echo_hub.planner.schedule import predict
from echo_hub.planner.simulator import Simulation, simulate
from echo_hub.planner.system import (
    Churn,
    Node,
    Run,
    broadcast_bound,
    broadcast_s,
    group_seconds,
    longest_of,
)
from echo_hub.planner.world import Change, World
from echo_p2p.errors import ConfigError

RUN = Run(groups=16, group_size=8, train_s=30.0, staleness=2, kappa=1, broadcast_s=6.0, check_s=1.0)
NEEDED = 16 * 8 / 30.0


def fleet(load: float, *, count: int = 6, groups: int = 1, run: Run = RUN) -> list[Node]:
    """Equal nodes that make `load` times what the learner uses up."""
    each = load * run.rollouts / run.train_s / count
    return [Node(f"n{i}", each, groups=groups) for i in range(count)]


def test_the_published_rule_is_the_case_of_pauses() -> None:
    run = replace(RUN, kappa=2, staleness=3, pauses=True)
    rate = rate_needed(run, 6.0)
    assert 6.0 + run.kappa * run.rollouts / rate == pytest.approx(run.kappa * run.train_s)
    assert rate_needed(replace(run, pauses=False), 6.0) == pytest.approx(NEEDED)
    assert math.isinf(rate_needed(run, 60.0))


def test_the_broadcast_bound_takes_the_tightest_of_its_three() -> None:
    assert broadcast_bound(100, hub_up=10, ups=[50, 50], downs=[100, 100]) == 10
    assert broadcast_bound(100, hub_up=1000, ups=[50, 50], downs=[100, 5]) == 20
    assert broadcast_bound(100, hub_up=50, ups=[0, 0, 0], downs=[1e9] * 3) == 6
    assert broadcast_bound(100, hub_up=50, ups=[], downs=[]) == 0
    nodes = [Node("a", 1, up=50, down=100)]
    assert broadcast_s(replace(RUN, broadcast_s=None, artifact=100, hub_up=10), nodes) == 10


def test_the_longest_of_a_group() -> None:
    assert longest_of(1, 0.5)[0] == pytest.approx(1, abs=0.01)
    assert longest_of(8, 0.0) == (pytest.approx(1), pytest.approx(0, abs=1e-9))
    draws = random.Random(1)
    sigma = math.sqrt(math.log1p(0.25))
    means = [
        max(draws.lognormvariate(-(sigma**2) / 2, sigma) for _ in range(8)) for _ in range(4000)
    ]
    assert longest_of(8, 0.5)[0] == pytest.approx(sum(means) / 4000, rel=0.03)


def test_least_staleness_is_least() -> None:
    for round_s in (1.0, 29.9, 30.0, 30.1, 75.0):
        for kappa in (1, 2, 4):
            least = least_staleness(round_s, 30.0, kappa)
            assert round_s <= (least + 1 - kappa) * 30.0 + 1e-6
            assert least == max(kappa if kappa > 1 else 0, least)
            if least > kappa:
                assert round_s > (least - kappa) * 30.0
    with pytest.raises(ValueError, match="endless"):
        least_staleness(math.inf, 30.0, 1)


def test_nodes_that_cannot_keep_up_skip_versions() -> None:
    assert [spacing(RUN, seconds) for seconds in (0.0, 30.0, 31.0, 95.0)] == [1, 1, 2, 4]
    run = replace(RUN, kappa=2, staleness=5)
    assert [spacing(run, seconds) for seconds in (0.0, 60.0, 61.0)] == [2, 2, 4]


def test_rule_names_the_limit() -> None:
    assert rule(RUN, fleet(2.0)).limit == "learner"
    assert rule(RUN, fleet(2.0)).holds
    slow = rule(RUN, fleet(0.5))
    assert (slow.limit, slow.holds) == ("rate", False)
    assert slow.seconds_per_update == pytest.approx(60)
    far = rule(replace(RUN, broadcast_s=200.0), fleet(2.0))
    assert (far.limit, far.holds) == ("latency", False)


def test_a_fleet_without_a_rate_is_always_waited_for() -> None:
    for nodes in ([], [Node("idle", 0.0)]):
        assert predict(RUN, nodes).idle == 1.0
        assert math.isinf(rule(RUN, nodes).seconds_per_update)


def test_rejection_and_churn_take_from_the_rate() -> None:
    nodes = fleet(1.0)
    assert effective_rate(replace(RUN, rejected=0.25), nodes) == pytest.approx(0.75 * NEEDED)
    churned = effective_rate(RUN, nodes, Churn(stay_s=600, away_s=200))
    assert churned < 0.75 * NEEDED


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("groups", 0), ("train_s", 0.0), ("train_s", -1.0), ("train_s", math.nan),
        ("rejected", 1.0), ("kappa", 3), ("hub_up", 0.0), ("broadcast_s", -1.0),
    ],
)  # fmt: skip
def test_a_run_of_impossible_numbers_is_refused(field: str, value: float) -> None:
    with pytest.raises(ConfigError):
        replace(RUN, **{field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [("rate", -1.0), ("rate", math.inf), ("price", math.nan), ("groups", 0), ("down", 0.0)],
)
def test_a_node_of_impossible_numbers_is_refused(field: str, value: float) -> None:
    with pytest.raises(ConfigError):
        replace(Node("n", 1.0), **{field: value})


@given(
    load=st.floats(0.2, 4),
    count=st.integers(1, 9),
    staleness=st.integers(0, 5),
    kappa=st.integers(1, 5),
    transfer=st.floats(0, 90),
    pauses=st.booleans(),
)
def test_predictions_are_possible(
    load: float, count: int, staleness: int, kappa: int, transfer: float, pauses: bool
) -> None:
    run = replace(
        RUN, groups=4, staleness=staleness, kappa=min(kappa, max(1, staleness)),
        broadcast_s=transfer, pauses=pauses,
    )  # fmt: skip
    found = predict(run, fleet(load, count=count, run=run), updates=12)
    assert 0 <= found.idle <= 1
    assert found.seconds_per_update >= run.train_s * (1 - 1e-9)
    assert max(found.lags, default=0) <= staleness
    assert 1 - found.idle == pytest.approx(run.train_s / found.seconds_per_update)


def test_more_than_a_thousand_nodes_are_predicted_by_a_sample() -> None:
    run = replace(RUN, groups=4096)
    many = fleet(0.5, count=2000, run=run)
    assert group_seconds(run, many[0]) < run.train_s
    assert predict(run, many, updates=20).idle == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("load", [0.6, 1.0, 1.6])
@pytest.mark.parametrize(("staleness", "kappa"), [(0, 1), (1, 1), (3, 2)])
@pytest.mark.parametrize("pauses", [False, True])
def test_prediction_and_simulation_agree(
    load: float, staleness: int, kappa: int, pauses: bool
) -> None:
    run = replace(RUN, staleness=staleness, kappa=kappa, pauses=pauses, rejected=0.05)
    nodes = fleet(load, groups=2)
    found = simulate(run, nodes, updates=90, warm_up=20)
    assert predict(run, nodes).idle == pytest.approx(found.idle, abs=0.045)


def test_simulation_counts_lags_within_the_bound_and_repeats_itself() -> None:
    churn = Churn(stay_s=600, away_s=60, silent=0.5)
    one = simulate(RUN, fleet(1.2), updates=60, churn=churn)
    assert one == simulate(RUN, fleet(1.2), updates=60, churn=churn)
    assert one != simulate(RUN, fleet(1.2), updates=60, churn=churn, seed=1)
    assert max(one.lags) <= RUN.staleness
    assert one.lags.total() == one.updates * RUN.groups


def test_a_simulated_regime_change_is_felt() -> None:
    nodes = fleet(1.5)
    gone = frozenset(node.key for node in nodes[:3])
    simulation = Simulation(
        RUN, nodes, rng=random.Random(0), changes=[Change(30, World(gone=gone))]
    )
    found = simulation.play(70)
    assert sum(found.waits[10:30]) < 0.05 * sum(found.busy[10:30])
    assert sum(found.waits[40:]) > 0.15 * sum(found.busy[40:])


def test_a_simulation_without_nodes_ends() -> None:
    found = Simulation(RUN, [], rng=random.Random(0)).play(5, patience_s=500)
    assert found.idle == 1.0
    assert found.updates == 0


class Noted(Activation):
    """A controller whose every answer is kept."""

    def __init__(self, run: Run, nodes: list[Node]) -> None:
        super().__init__(run, nodes)
        self.answers: list[frozenset[str]] = []

    def decide(self, now: float) -> frozenset[str]:
        self.answers.append(super().decide(now))
        return self.answers[-1]


def test_a_simulation_is_run_by_the_controller() -> None:
    run = replace(RUN, staleness=4, kappa=2)
    nodes = [
        replace(node, price=1.0 + 0.1 * i) for i, node in enumerate(fleet(3.0, count=12, run=run))
    ]
    controller = Noted(run, nodes)
    half = frozenset(node.key for node in nodes[:6])
    found = Simulation(
        run,
        nodes,
        rng=random.Random(0),
        controller=controller,
        changes=[Change(25, World(gone=half))],
    ).play(60, warm_up=10)
    assert controller.answers[0] == {node.key for node in nodes[:5]}  # 12 give three times it
    assert controller.answers[-1] <= {node.key for node in nodes[6:]}
    assert found.idle < 0.05
    everything = Simulation(run, nodes, rng=random.Random(0)).play(60, warm_up=10)
    assert found.money < 0.7 * everything.money
