"""What small bases are brought up on: the good habit is right, all fits, only training is shown."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from echo_hub.models.habits import RECIPES, Episode, Recipe, noted, possibilities
from echo_hub.models.make_base import make_base, make_tokenizer
from echo_hub.models.plans import planned
from echo_hub.tasks import make_task
from echo_hub.tasks.base import Prompt, Transcript
from echo_hub.tokens import Tokenizer
from echo_p2p.environments import environment
from echo_p2p.environments.sokoban import parse_board
from echo_p2p.errors import ConfigError


class Watched:
    """A task that remembers what prompts were drawn from it."""

    def __init__(self, task: Any) -> None:
        self.task = task
        self.drawn: list[tuple[str, Prompt]] = []

    def prompt(self, split: Any, index: int) -> Prompt:
        prompt: Prompt = self.task.prompt(split, index)
        self.drawn.append((split, prompt))
        return prompt

    def problem(self, split: Any, index: int) -> Any:
        self.prompt(split, index)
        return self.task.problem(split, index)


def success(recipe: Recipe, good: float, count: int) -> float:
    """Share of episodes that end with a reward of 1, checked turn by turn against the task."""
    rng = random.Random(1)
    task = Watched(make_task(recipe.task, recipe.options, 0))
    won = 0.0
    for _ in range(count):
        episode = recipe.episode(rng, task, good)
        split, prompt = task.drawn[-1]
        assert split == "train"
        assert episode[0] == (prompt.text, False)
        won += reward_of(task.task, prompt, episode)
    return won / count


def reward_of(task: Any, prompt: Prompt, episode: Episode) -> float:
    answers = [text for text, own in episode if own]
    if prompt.turns is None:
        assert len(answers) == 1
        return float(task.reward(prompt, answers[0]))
    said = [text for text, own in episode[1:] if not own]
    reply = environment(prompt.turns.environment)
    replies = [reply(prompt.turns.state, answers[: n + 1]) for n in range(len(answers))]
    assert replies[: len(said)] == said
    assert len(answers) == prompt.turns.max_turns or replies[-1] is None
    return float(task.reward(prompt, Transcript(tuple(answers), tuple(said))))


@pytest.mark.parametrize("name", RECIPES)
def test_the_good_habit_is_better_and_a_base_has_some_of_both(name: str) -> None:
    recipe = RECIPES[name]
    assert success(recipe, 1.0, 40) == 1.0
    assert success(recipe, 0.0, 80) < 0.4
    assert 0.1 < success(recipe, recipe.good, 200) < 0.6


@pytest.mark.parametrize("name", RECIPES)
def test_episodes_fit_and_are_read_as_they_were_written(name: str, tmp_path: Path) -> None:
    recipe = RECIPES[name]
    tokenizer = make_tokenizer(recipe.phrases, recipe.context)
    rng = random.Random(2)
    task = make_task(recipe.task, recipe.options, 0)
    for _ in range(40):
        episode = recipe.episode(rng, task, recipe.good)
        lengths = []
        for text, own in episode:
            ids = tokenizer.encode(text, add_special_tokens=False)
            assert tokenizer.decode(ids) == text
            assert tokenizer.unk_token_id not in ids
            lengths.append(len(ids) + own)
        assert sum(lengths) <= recipe.context
        assert sum(lengths[1:]) <= recipe.max_new_tokens
        assert max(lengths[1::2]) <= (recipe.turn_tokens or recipe.max_new_tokens)


def test_a_plan_names_cells_push_way_and_moves() -> None:
    board = parse_board("#####\n#@__#\n#_$.#\n#__##\n#####")
    assert planned(board) == [
        "1@2_3_4_5$6.7_8_9#\n@1$5.6#9:46\n1>4>5<answer>Down || Right</answer>"
    ]


def test_possibilities_are_ruled_out_until_one_is_left() -> None:
    # A: B is a knave. B: A and C are of the same kind. C: none of us is a knight.
    statements = (("knave", 1), ("same", 0, 2), ("count", 0))
    assert possibilities(statements) == "A: 00111100\nB: 10010110\nC: 01010100\n0004\n"


def test_a_story_is_noted_in_short() -> None:
    story = (
        "Ada has 8 eggs. Ada gives half of them away. Ada buys 3 packs of 4 eggs. "
        "Ada loses 2 eggs. Ada wins as many eggs again. Ada finds 5 eggs. Ada gives 2 eggs away. "
        "How many eggs does Ada have now?"
    )
    assert noted(story) == ["8", "/2", "+3*4", "-2", "*2", "+5", "-2"]


def test_a_base_is_made_and_its_tokenizer_is_the_hubs(tmp_path: Path) -> None:
    loss = make_base("wordle", tmp_path / "base", steps=2)
    assert loss > 0
    tokenizer = Tokenizer.load(tmp_path / "base")
    ids = tokenizer.encode("?\n<answer>abc</answer>", "raw")
    assert len(ids) == 2 + 1 + 3 + 1
    assert tokenizer.decode([*ids, *tokenizer.eos]) == "?\n<answer>abc</answer>"
    assert tokenizer.context == RECIPES["wordle"].context
    assert max(ids) < tokenizer.vocab_size


def test_tasks_without_a_recipe_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no recipe .*'chess'.*There are: sokoban, wordle"):
        make_base("chess", tmp_path / "base")
