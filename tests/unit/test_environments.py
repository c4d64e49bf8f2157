"""Environments: known by id and number, pure and total, and as they were when they got it."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echo_p2p.environments import ENVIRONMENTS, environment, is_environment_id
from echo_p2p.errors import DialogueError

DIALOGUES: dict[str, tuple[dict[str, Any], list[str], str]] = {
    "guess-number/1": (
        {"number": 5, "high": 9},
        ["", "nothing", "0", "12", "3", "it is 7 or 8", "99999999999", "+5", "5"],
        "9748b2ef89eabfd9",
    ),
    "sokoban/1": (
        {"board": "######\n#@___#\n#_$.##\n#_$_.#\n######"},
        [
            "",
            "Up",
            "<answer>Up || Left</answer>",
            "<answer>Down || right</answer>",
            "<answer>Jump</answer>",
            "<answer>Down || Down</answer><answer>Right</answer>",
            "<answer>\u0420ight</answer>",
            "<answer>Down || Right || Right</answer>",
        ],
        "85fffd8af1061ca3",
    ),
    "wordle/1": (
        {"secret": "abbey"},
        ["", "<answer>babes</answer>", "<answer>ABBEY </answer>"],
        "06d559342be85856",
    ),
}
"""Of each environment: a state, turns to take in it one after the other, and the digest of all that
it replies. If one of these must be changed, so must the environment's number."""


def replies(name: str, state: dict[str, Any], turns: Sequence[str]) -> list[str | None]:
    reply = environment(name)
    return [reply(state, turns[: number + 1]) for number in range(len(turns))]


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_an_environment_replies_as_it_always_did(name: str) -> None:
    state, turns, digest = DIALOGUES[name]
    said = json.dumps(replies(name, state, turns))
    assert hashlib.blake2b(said.encode(), digest_size=8).hexdigest() == digest, said


@pytest.mark.parametrize("name", ENVIRONMENTS)
@given(st.lists(st.text(max_size=60), min_size=1, max_size=4))
@settings(max_examples=30, deadline=None)
def test_any_answer_gets_a_reply_and_always_the_same(name: str, turns: list[str]) -> None:
    state = DIALOGUES[name][0]
    before = json.dumps(state)
    assert replies(name, state, turns) == replies(name, json.loads(before), turns)
    assert json.dumps(state) == before


def test_no_environment_needs_more_than_the_standard_library() -> None:
    code = (
        "import sys; from echo_p2p.environments import ENVIRONMENTS, environment\n"
        "for name in ENVIRONMENTS: environment(name)\n"
        "print(*{name.partition('.')[0] for name in sys.modules} - sys.stdlib_module_names)"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )  # fmt: skip
    assert set(done.stdout.split()) <= {"echo_p2p", "__main__"}


def test_an_unknown_one_says_what_to_do() -> None:
    with pytest.raises(DialogueError, match=r"'guess-number/2', but guess-number/1\. Upgrade it"):
        environment("guess-number/2")
    with pytest.raises(DialogueError, match="no environment 'os/1'"):
        environment("os/1")


def test_what_one_cannot_make_sense_of_is_a_fault() -> None:
    with pytest.raises(DialogueError, match="guess-number/1 failed: KeyError"):
        environment("guess-number/1")({}, ["3"])


@pytest.mark.parametrize("name", ["", "sokoban", "sokoban/0", "so kan/1", "a/1/2", "../a/1", "A/1"])
def test_what_is_no_id(name: str) -> None:
    assert not is_environment_id(name)
    assert all(map(is_environment_id, ENVIRONMENTS))
