"""Micro-batches: each sequence once, within the budget, and hardly any padding."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo_hub.learner.batches import MOST_PADDING, micro_batches, padded_tokens, rows_of

LENGTHS = st.lists(st.integers(1, 500), max_size=200)


def test_by_hand():
    assert micro_batches([3, 9, 5, 9, 4], 20) == [[1, 3], [2, 4], [0]]
    assert micro_batches([3, 9, 5, 9, 4], 20, packed=True) == [[1, 3], [2, 4], [0]]
    assert micro_batches([3, 9, 5, 9, 4], 27, packed=True) == [[1, 3, 2, 4], [0]]
    assert rows_of([9, 9, 5, 4], packed=True) == [[0], [1], [2, 3]]
    assert padded_tokens([9, 9, 5, 4], packed=True) == 27
    assert micro_batches([], 20) == []
    assert padded_tokens([]) == 0
    assert micro_batches([50, 1], 20) == [[0], [1]]


@given(LENGTHS, st.integers(1, 4000), st.booleans())
def test_each_once_within_the_budget_with_little_padding(
    lengths: list[int], budget: int, packed: bool
):
    batches = micro_batches(lengths, budget, packed=packed)
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches:
        inside = [lengths[i] for i in batch]
        computed = padded_tokens(inside, packed=packed)
        assert computed <= max(budget, max(inside))
        assert sum(inside) >= (1 - MOST_PADDING) * computed
    widths = [max(lengths[i] for i in batch) for batch in batches]
    assert widths == sorted(widths, reverse=True)


@given(LENGTHS, st.integers(1, 4000), st.booleans())
def test_the_rows_of_a_batch_hold_each_once_and_fit(lengths: list[int], budget: int, packed: bool):
    for batch in micro_batches(lengths, budget, packed=packed):
        inside = [lengths[i] for i in batch]
        rows = rows_of(inside, packed=packed)
        assert sorted(i for row in rows for i in row) == list(range(len(inside)))
        assert max(sum(inside[i] for i in row) for row in rows) == max(inside)


def _sums(chance: random.Random) -> int:
    return 8 + chance.randint(24, 34)


def _reasoning(chance: random.Random) -> int:
    """A few hundred tokens of prompt and a log-normal answer, cut at a limit."""
    return chance.randint(100, 400) + min(4096, int(chance.lognormvariate(6.3, 0.8)) + 1)


def _two_kinds(chance: random.Random) -> int:
    return chance.randint(30, 60) if chance.random() < 0.7 else chance.randint(1500, 2000)


@pytest.mark.parametrize("draw", [_sums, _reasoning, _two_kinds])
def test_batches_stay_as_few_as_their_tokens_ask_for(draw):
    chance = random.Random(1)
    for _ in range(20):
        lengths = [draw(chance) for _ in range(256)]
        for packed in (False, True):
            batches = micro_batches(lengths, 8192, packed=packed)
            # the last ones of each width are not full
            assert len(batches) <= 2 * sum(lengths) / 8192 + 12
