"""The environments of multi-turn tasks: what the policy is told after each of its turns.

Nodes run them while they generate, and the hub runs them again over what nodes hand in, so both
sides have them, and nothing but data ever crosses the network. An environment is a function

    reply(state, answers) -> observation | None

`state` is the JSON object that the hub's lease brings (a board, a secret word), `answers` is every
turn of the policy so far, as text, oldest first; the result is what the policy reads next, or None
when the dialogue is over. Promises of every environment:

- pure: the result depends on the arguments alone, in every process and on every machine. No I/O,
  no clock, no global randomness, no iteration over sets; only the standard library;
- total: any answer, however odd, gets a reply. What raises for *some answer* is a bug;
- quick: microseconds to milliseconds, however long the answers;
- short: an observation has at most `MAX_OBSERVATION` characters.

An environment is named "name/number". Whoever changes what one replies, to anything, gives it a new
number: hub and nodes of different releases then know that they differ, instead of finding it out by
observations that do not match. (`tests/unit/test_environments.py` holds each to what it said.)
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from echo_p2p.errors import DialogueError

State = Mapping[str, Any]
Reply = Callable[[State, Sequence[str]], str | None]

MAX_OBSERVATION = 8192
"""Characters of one observation."""

_MODULES = {
    "guess-number/1": "echo_p2p.environments.guess_number",
    "sokoban/1": "echo_p2p.environments.sokoban",
    "wordle/1": "echo_p2p.environments.wordle",
}
"""Where the function `reply` of each environment is."""

ENVIRONMENTS = tuple(sorted(_MODULES))
"""The ids of all environments of this release."""

_ID = re.compile(r"[a-z][a-z0-9-]{0,39}/[1-9][0-9]{0,3}")


def environment(name: str) -> Reply:
    """The environment of that id; DialogueError says what there is, if there is none."""
    if name not in _MODULES:
        kind = name.partition("/")[0]
        near = [one for one in ENVIRONMENTS if one.partition("/")[0] == kind]
        raise DialogueError(
            f"this program has no environment {name!r:.60}"
            + (f", but {', '.join(near)}." if near else "."),
            fix="Upgrade it: pip install --upgrade echo-p2p",
        )
    reply: Reply = importlib.import_module(_MODULES[name]).reply

    def bounded(state: State, answers: Sequence[str]) -> str | None:
        try:
            said = reply(state, answers)
        except Exception as error:  # a state that is none of its own, or a bug
            raise DialogueError(f"{name} failed: {type(error).__name__}: {error}") from error
        if said is not None and len(said) > MAX_OBSERVATION:
            raise DialogueError(f"{name} replied with {len(said)} characters.")
        return said

    return bounded


def is_environment_id(name: str) -> bool:
    """Whether a name is of the form "name/number"."""
    return _ID.fullmatch(name) is not None
