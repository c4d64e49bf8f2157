"""Counts and rates for people, and the rewards of one evaluation."""

from __future__ import annotations

from echo_hub.checks import Code
from echo_hub.evaluation import Evaluation
from echo_hub.tally import RATE_WINDOW_S, Tally

A, B = b"a" * 32, b"b" * 32


def test_every_rollout_is_counted_once() -> None:
    tally = Tally([(A, "accepted", 2, 16), (B, "stale", 1, 8)])
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
