"""Counts and rates for people, and the rewards of one evaluation."""

from __future__ import annotations

import random

import pytest

from echo_hub.rollouts.checks import Code
from echo_hub.rollouts.evaluation import Evaluated, Evaluation, estimate
from echo_hub.tally import RATE_WINDOW_S, Tally

A, B = b"a" * 32, b"b" * 32


def test_every_rollout_is_counted_once() -> None:
    tally = Tally([(A, "accepted", 2, 16), (B, "stale", 1, 8)])
    assert tally.take_changed(9) == []  # of what lies in the ledger nothing is news
    tally.accept(A, 8, 0.0)
    tally.reject(B, Code.BAD_TOKENS, 8)
    tally.drop(A, Code.AUDIT_MARGIN, 8)
    assert tally.accepted == 16
    assert tally.rejected == {"audit_margin": 8, "bad_tokens": 8, "stale": 8}
    nodes = tally.nodes(0.0)
    assert [(node.key, node.accepted, node.rejected) for node in nodes] == [(A, 16, 8), (B, 0, 16)]


def test_rates_are_of_late() -> None:
    tally = Tally()
    tally.seen(A, 3, 0.0)
    for second in range(1, 11):
        tally.accept(A, 5, float(second))
    (node,) = tally.nodes(10.0)
    assert (node.version, node.rate, node.last_seen) == (3, 5.0, 10.0)
    assert tally.nodes(10.0 + RATE_WINDOW_S + 1)[0].rate == 0.0


def test_an_evaluation_ends_when_each_prompt_is_answered_or_left_out() -> None:
    evaluation = Evaluation(version=4, prompts=4)
    evaluation.answer(2, 11, [0.0, 1.0])
    evaluation.answer(0, 12, [1.0])
    assert [evaluation.fail(1) for _ in range(3)] == [True, True, False]
    assert not evaluation.finished
    evaluation.leave_out(3)
    assert evaluation.finished
    assert evaluation.rewards == [1.0, 0.5]
    assert evaluation.group_ids == [11, 12]
    found = evaluation.outcome()
    assert found is not None
    assert (found.version, found.all.reward, found.all.prompts) == (4, 0.75, 2)


def test_an_evaluation_of_several_tasks_goes_through_them_in_turn() -> None:
    evaluation = Evaluation(version=2, prompts=6, names=["sums", "words"])
    for index in range(6):
        evaluation.answer(index, index, [float(index % 2)])
    found = evaluation.outcome()
    assert found is not None
    assert (found.all.reward, found.all.prompts) == (0.5, 6)
    assert {name: (one.reward, one.prompts) for name, one in found.tasks.items()} == {
        "sums": (0.0, 3),
        "words": (1.0, 3),
    }
    assert Evaluated.from_dict(found.as_dict()) == found


def test_an_evaluation_that_hardly_anybody_answered_says_nothing() -> None:
    evaluation = Evaluation(version=2, prompts=10)
    assert evaluation.outcome() is None
    for index in range(4):
        evaluation.answer(index, index, [1.0])
    assert evaluation.outcome() is None
    evaluation.answer(4, 4, [1.0])
    assert evaluation.outcome() is not None


@pytest.mark.parametrize(
    ("solved", "prompts", "low", "high"),
    [  # published values of Wilson's interval
        (0, 10, 0.0, 0.2775),
        (10, 10, 0.7225, 1.0),
        (5, 10, 0.2366, 0.7634),
        (81, 263, 0.2553, 0.3662),
    ],
)
def test_the_interval_of_a_share(solved: int, prompts: int, low: float, high: float) -> None:
    found = estimate([1.0] * solved + [0.0] * (prompts - solved))
    assert found.reward == solved / prompts
    assert (found.low, found.high) == (pytest.approx(low, abs=1e-4), pytest.approx(high, abs=1e-4))


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    rng = random.Random(3)
    for draw, truth in (
        (lambda: float(rng.random() < 0.8), 0.8),
        (lambda: rng.random() ** 2, 1 / 3),
    ):
        found = [estimate([draw() for _ in range(100)]) for _ in range(100)]
        held = sum(one.low <= truth <= one.high for one in found) / 100
        assert 0.88 <= held <= 0.99
