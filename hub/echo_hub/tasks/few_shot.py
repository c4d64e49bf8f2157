"""`few-shot-addition`: small sums after a few worked ones, for a real language model on a CPU.

A base model needs no instructions to continue a list of sums, so it gets some right from the first
version on; that is what reinforcement learning needs to begin.
"""

from __future__ import annotations

import random
import re

from echo_hub.tasks.base import Prompt, Split
from echo_hub.tasks.splits import draw, rng_of

_SHOWN = "7 + 31 = 38\n21 + 34 = 55\n32 + 9 = 41\n35 + 16 = 51\n"  # none of them is ever asked
_NUMBER = re.compile(r"\d+")


class FewShotAddition:
    """Sums of two numbers from 2 to 30."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def prompt(self, split: Split, index: int) -> Prompt:
        text, total = draw(split, lambda attempt: _sum(rng_of(self._seed, split, index, attempt)))
        return Prompt(_SHOWN + text, {"sum": total})

    def reward(self, prompt: Prompt, answer: str) -> float:
        first_line = answer.lstrip().partition("\n")[0]
        number = _NUMBER.search(first_line)
        return float(number is not None and number.group() == str(prompt.data["sum"]))


def _sum(rng: random.Random) -> tuple[str, int]:
    a, b = rng.randint(2, 30), rng.randint(2, 30)
    return f"{a} + {b} =", a + b
