"""Prompts drawn at random that never cross from one split to the other.

Whether a prompt is held out depends on what it says alone, never on its index or the run's seed.
So a prompt that is evaluated on was not trained on, although both are drawn from the same source,
and although drawing may give the same prompt twice.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from typing import TypeVar

from echo_hub.tasks.base import Split
from echo_p2p.errors import ConfigError

T = TypeVar("T")

_HELD_OUT_OF_16 = 4
_MOST_DRAWS = 500


def held_out(key: str) -> bool:
    """True of a quarter of all prompts."""
    return hashlib.blake2b(key.encode(), digest_size=1).digest()[0] % 16 < _HELD_OUT_OF_16


def draw(split: Split, make: Callable[[int], tuple[str, T]]) -> tuple[str, T]:
    """The first prompt of those that `make` draws which belongs to the split.

    Args:
        make: makes draw number 0, 1, 2, ...: the text that identifies it, and what goes with it.
    """
    for attempt in range(_MOST_DRAWS):
        key, rest = make(attempt)
        if held_out(key) == (split == "heldout"):
            return key, rest
    raise ConfigError(
        f"{_MOST_DRAWS} prompts drawn, none for the split {split!r}.",
        fix="The task has too few different prompts; widen its options.",
    )


def rng_of(*parts: str | int) -> random.Random:
    """A random source that is a function of these, the same in every process."""
    return random.Random("/".join(map(str, parts)))
