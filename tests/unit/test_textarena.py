"""textarena's games: played again from their seed, so that a reply depends on the turns alone."""

from __future__ import annotations

import itertools
import random
import sys

import pytest

from echo_hub.tasks import make_task
from echo_hub.tasks.base import Transcript
from echo_hub.tasks.textarena import TextArena
from echo_p2p.errors import ConfigError

pytest.importorskip("textarena")


def test_a_game_is_won_by_those_who_know_how() -> None:
    """Mastermind with a small code: of all guesses one wins, and the hub finds that it does."""
    task = TextArena("Mastermind-v0", {"game": {"code_length": 2, "num_numbers": 4}}, 0)
    prompt = task.prompt("train", 3)
    assert "Mastermind" in prompt.text
    guesses = [f"[{a} {b}]" for a, b in itertools.permutations(range(1, 5), 2)]
    won = [guess for guess in guesses if task.reply(prompt, [guess]) is None]
    assert len(won) == 1
    assert task.reward(prompt, Transcript((won[0],), ())) == 1.0
    lost = next(guess for guess in guesses if guess not in won)
    told = task.reply(prompt, [lost])
    assert told is not None
    assert "peg" in told
    assert task.reply(prompt, [lost, won[0]]) is None
    assert task.reward(prompt, Transcript((lost,), ())) == 0.0


def test_a_reply_is_a_function_of_prompt_and_turns() -> None:
    random.seed(5)
    before = random.getstate()
    one, other = (make_task("textarena:FrozenLake-v0-random", {}, 1) for _ in range(2))
    assert isinstance(one, TextArena)
    assert isinstance(other, TextArena)
    turns = ["[down]", "nonsense", "[right]"]
    for index in (4, 0, 2):
        prompt = one.prompt("train", index)
        assert prompt == other.prompt("train", index)
        random.seed(9)
        assert one.reply(prompt, turns) == other.reply(prompt, turns)
    random.setstate(before)
    one.prompt("heldout", 1)
    assert random.getstate() == before


def test_splits_share_no_game() -> None:
    task = TextArena("Mastermind-v0", {}, 0)
    codes = {
        split: {
            str(task._begun(task.prompt(split, i).data["seed"])[0].state.game_state["secret_code"])
            for i in range(40)
        }
        for split in ("train", "heldout")
    }
    assert not codes["train"] & codes["heldout"]


def test_what_cannot_be_played_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"no game 'Mastermynd-v0'.\n*.*Near it: Mastermind-v0"):
        TextArena("Mastermynd-v0", {}, 0)
    with pytest.raises(ConfigError, match=r"cannot be played alone.*has to be 2"):
        TextArena("TicTacToe-v0", {}, 0)
    with pytest.raises(ConfigError, match="turns"):
        TextArena("Mastermind-v0", {"turns": 0}, 0)
    with pytest.raises(ConfigError, match=r"cannot be played.*colour"):
        TextArena("Mastermind-v0", {"game": {"colour": 1}}, 0)
    monkeypatch.setitem(sys.modules, "textarena", None)
    with pytest.raises(ConfigError, match=r"not installed\. .*echo-p2p\[envs\]"):
        TextArena("Mastermind-v0", {}, 0)
