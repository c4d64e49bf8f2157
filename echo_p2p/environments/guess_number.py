"""`guess-number/1`: the policy looks for a number and is told on which side of a guess it lies.

State: `{"number": 5, "high": 9}`, the number sought and the highest there may be (the lowest is 1).
A turn's guess is the first run of digits in it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

_DIGITS = re.compile(r"[0-9]{1,9}")


def guess_of(answer: str) -> int | None:
    """The guess in a turn, if it holds one."""
    found = _DIGITS.search(answer)
    return int(found.group()) if found else None


def reply(state: Mapping[str, Any], answers: Sequence[str]) -> str | None:
    """`higher` or `lower`; None when the number was found."""
    guess = guess_of(answers[-1])
    if guess == state["number"]:
        return None
    if guess is None or not 1 <= guess <= state["high"]:
        return f"a number from 1 to {state['high']}:"
    return "higher:" if guess < state["number"] else "lower:"
