"""What a task is: a source of prompts and a reward. The smallest interface that trains.

`prompt` must be a pure function of (split, index): a scorer process makes the same prompt again to
compute the reward, and a re-leased index must give the same prompt.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

Split = Literal["train", "heldout"]


@dataclass(frozen=True)
class Prompt:
    """`text` goes to the policy; `data` is what the reward needs to know, and goes nowhere."""

    text: str
    data: Mapping[str, Any] = field(default_factory=dict)


class Task(Protocol):
    """A single-turn task."""

    def prompt(self, split: Split, index: int) -> Prompt:
        """The prompt number `index` (0, 1, 2, ...) of a split. Splits share no prompt."""
        ...

    def reward(self, prompt: Prompt, answer: str) -> float:
        """Reward of a finished answer, without its end-of-sequence token. Finite, usually [0, 1].

        Raising is a failure to score, never a reward of zero.
        """
        ...
