"""`addmix3`: three-digit addition in written column work, by a base policy that forgets the carry.

`237+682=` is answered `7+2+0=9,3+8+0=11,2+6+1=9>919`; the reward is 1 when the number after the
last `>` is right.
"""

from __future__ import annotations

import random

from echo_hub.tasks.base import Prompt, Split
from echo_hub.tasks.splits import draw, rng_of


class AddMix:
    """Sums of two three-digit numbers."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def prompt(self, split: Split, index: int) -> Prompt:
        text, total = draw(split, lambda attempt: _sum(rng_of(self._seed, split, index, attempt)))
        return Prompt(text, {"sum": total})

    def reward(self, prompt: Prompt, answer: str) -> float:
        _, mark, result = answer.rpartition(">")
        return float(bool(mark) and result == str(prompt.data["sum"]))


def _sum(rng: random.Random) -> tuple[str, int]:
    a, b = rng.randrange(100, 1000), rng.randrange(100, 1000)
    return f"{a}+{b}=", a + b
