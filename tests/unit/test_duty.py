"""Duty: the share of work is kept over any steps, and no rest is long."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo_node.engines.duty import LONGEST_REST_S, Duty


@given(st.integers(5, 99), st.lists(st.floats(0.001, 3.0), min_size=1, max_size=50))
def test_the_share_of_work_is_what_was_asked_for(percent: int, steps: list[float]) -> None:
    duty = Duty()
    duty.set(percent)
    rests = [duty.rest_s(step) for step in steps]
    assert max(rests) <= LONGEST_REST_S
    for _ in range(10_000):  # what is owed is paid by the steps that follow
        rests.append(duty.rest_s(0.0))
        if not rests[-1]:
            break
    worked, rested = sum(steps), sum(rests)
    assert 100 * worked / (worked + rested) == pytest.approx(percent, rel=1e-6)


def test_by_default_and_after_a_change_nothing_is_owed() -> None:
    duty = Duty()
    assert duty.rest_s(10.0) == 0
    duty.set(10)
    assert duty.rest_s(10.0) == LONGEST_REST_S
    duty.set(100)
    assert duty.rest_s(1.0) == 0
