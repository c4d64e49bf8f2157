"""Cutting an update into micro-batches that fit in memory and hold little padding. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def micro_batches(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Indices of `lengths`, each once, in batches of at most `budget` padded tokens.

    A batch costs its longest length times its rows. Longest first, so a batch holds neighbours in
    length and memory runs out at once or never; a sequence longer than the budget is a batch of
    its own. Ties keep their order: the same lengths give the same batches.
    """
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    batches: list[list[int]] = []
    width = 0
    for i in order:
        if not batches or (len(batches[-1]) + 1) * width > budget:
            batches.append([])
            width = lengths[i]
        batches[-1].append(i)
    return batches
