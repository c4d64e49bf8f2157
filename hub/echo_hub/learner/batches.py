"""Cutting an update into micro-batches that fit in memory and hold little padding. Pure.

A micro-batch is rows of one width, its longest sequence's. Where the model takes several sequences
in one row (`packed`), short ones fill what longer ones leave. Promise: whatever the lengths, at
most `MOST_PADDING` of the tokens that a micro-batch computes are padding.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

MOST_PADDING = 0.1
"""Share of a micro-batch's tokens that may be padding."""


_Sequence = tuple[int, int]
"""A sequence that is not yet in a batch: its length, negative, and its index. In a sorted list the
longest come first and equals keep their order."""


def micro_batches(lengths: Sequence[int], budget: int, *, packed: bool = False) -> list[list[int]]:
    """Indices of `lengths`, each once, in batches of at most `budget` tokens, padding included.

    Longest first, so that memory runs out at once or never; a sequence longer than the budget is a
    batch of its own. The same lengths give the same batches. `rows_of` of the lengths of a batch
    gives the rows that were counted here.
    """
    left = _longest_first(lengths)
    batches: list[list[int]] = []
    while left:
        rows = _fill(left, budget, packed)
        batches.append([i for row in rows for i in row])
    return batches


def rows_of(lengths: Sequence[int], *, packed: bool = False) -> list[list[int]]:
    """The rows of one batch of these lengths: indices in the order in which they lie in a row."""
    left = _longest_first(lengths)
    width = max(lengths, default=0)
    rows: list[list[int]] = []
    while left:
        rows.append([index for _, index in _take(left, width, packed)])
    return rows


def padded_tokens(lengths: Sequence[int], *, packed: bool = False) -> int:
    """Tokens that a batch of these lengths computes, padding included."""
    return len(rows_of(lengths, packed=packed)) * max(lengths, default=0)


def _longest_first(lengths: Sequence[int]) -> list[_Sequence]:
    return sorted((-length, index) for index, length in enumerate(lengths))


def _fill(left: list[_Sequence], budget: int, packed: bool) -> list[list[int]]:
    """One batch, taken out of `left`: rows, until the budget or the padding says stop."""
    width = -left[0][0]
    rows: list[list[int]] = []
    filled = 0
    while left and (not rows or (len(rows) + 1) * width <= budget):
        taken = _take(left, width, packed)
        filled += sum(-length for length, _ in taken)
        if filled < (1.0 - MOST_PADDING) * (len(rows) + 1) * width:
            left[:] = sorted([*taken, *left])
            break
        rows.append([index for _, index in taken])
    return rows


def _take(left: list[_Sequence], width: int, packed: bool) -> list[_Sequence]:
    """The next row: the longest sequence left, then whatever is the longest that still fits."""
    taken = [left.pop(0)]
    room = width + taken[0][0]
    while packed and (at := bisect_left(left, (-room, -1))) < len(left):
        taken.append(left.pop(at))
        room += taken[-1][0]
    return taken
