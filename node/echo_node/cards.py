"""Several equal cards as one place for an engine: how many of them a model can be divided among.

Pure. vLLM divides each layer's heads among the cards of its tensor parallelism, so their number
must divide the heads, and divide the heads that share keys or be divided by their number; each card
then holds a share of the layers' weights and of the keys and values, and all of the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

Key = TypeVar("Key")


def shares(heads: int, kv_heads: int, cards: int) -> int:
    """The most cards, of so many, that a model with these heads can be divided among."""
    return next(
        count
        for count in range(cards, 0, -1)
        if heads % count == 0 and (kv_heads % count == 0 or count % kv_heads == 0)
    )


def equal(cards: Mapping[int, Key]) -> Sequence[int]:
    """Numbers of the most cards that are the same, by what tells cards apart."""
    alike: dict[Key, list[int]] = {}
    for number, key in cards.items():
        alike.setdefault(key, []).append(number)
    return max(alike.values(), key=len, default=[])
