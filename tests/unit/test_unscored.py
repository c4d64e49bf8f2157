"""Failures to score are told to the operator, and their reasons to nobody else."""

from __future__ import annotations

import pytest

from echo_hub.rollouts.checks import Code, Rejection
from echo_hub.rollouts.unscored import Unscored


def test_the_operator_hears_of_the_first_and_of_rows(caplog: pytest.LogCaptureFixture) -> None:
    unscored = Unscored()
    unscored.failed("KeyError: 'sum'")
    for _ in range(5):
        unscored.scored()
        unscored.failed("one now and then")
    assert [record.getMessage() for record in caplog.records] == [
        "a group could not be scored; it is left out: KeyError: 'sum'"
    ]
    caplog.clear()
    for number in range(2, 1000):
        unscored.failed(f"number {number}")
    said = [record.getMessage() for record in caplog.records]
    assert [one.rpartition(" ")[2] for one in said] == ["10", "100"]
    assert "the last 100 in a row" in said[1]


def test_what_a_task_says_is_not_for_nodes() -> None:
    rejection = Rejection(Code.SCORE_FAILED, "ValueError: the right answer is 42")
    assert "42" in rejection.sentence
    assert rejection.for_node == Code.SCORE_FAILED.sentence
    other = Rejection(Code.BAD_OBSERVATION, "Rollout 0: it breaks off in turn 1.")
    assert other.for_node == other.sentence
