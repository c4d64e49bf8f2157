"""What small bases are brought up on: episodes in which somebody plays a task, well or not.

A base has a good habit and a bad one, and reinforcement has to choose between them. The good one is
work that can be seen (steps, tries, a plan); the bad one is what somebody does who does not look.
All instances are of the task's training split, so what is held out is new to the base as well.

An episode is a list of (text, own): `own` is True for the policy's turns, each of which the base
learns to write and to end; the other texts are prompts and observations.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from echo_hub.models import plans
from echo_hub.tasks.base import Prompt
from echo_hub.tasks.countdown import Countdown, evaluate
from echo_hub.tasks.islanders import truths
from echo_hub.tasks.knights_knaves import LETTERS, KnightsKnaves
from echo_hub.tasks.math_problems import NAMES, THINGS
from echo_hub.tasks.mathematics import Mathematics
from echo_hub.tasks.sokoban import Sokoban
from echo_hub.tasks.wordle import LEVELS as WORDLE_LEVELS
from echo_hub.tasks.wordle import Wordle
from echo_p2p.environments import sokoban, wordle
from echo_p2p.environments.sokoban import MOVES, parse_board

Episode = list[tuple[str, bool]]

TERSE: Mapping[str, Any] = {"wording": "terse"}
_FAR = 1 << 40  # no run gets to prompts of such an index


@dataclass(frozen=True)
class Recipe:
    """How the base of a task is made.

    `good`: share of the episodes that show the good habit.
    `options` are the task's, for the base and for runs on it; `context` the model's positions.
    """

    task: str
    options: Mapping[str, Any]
    episode: Callable[[random.Random, Any, float], Episode]
    good: float
    max_new_tokens: int
    context: int = 256
    steps: int = 300
    batch: int = 64
    turn_tokens: int = 0
    phrases: tuple[str, ...] = field(default=())


def tagged(answer: str) -> str:
    return f"<answer>{answer}</answer>"


def drawn(rng: random.Random, task: Any) -> Prompt:
    """A prompt of the training split."""
    prompt: Prompt = task.prompt("train", rng.randrange(_FAR, 2 * _FAR))
    return prompt


# Sokoban: look, plan one push, make it, turn by turn; or move at random.


def sokoban_episode(rng: random.Random, task: Sokoban, good: float) -> Episode:
    prompt = drawn(rng, task)
    board = parse_board(prompt.data["board"])
    if rng.random() < good:
        answers = plans.planned(board)
    else:
        answers = [
            plans.answer([rng.choice(MOVES) for _ in range(rng.randint(1, 3))])
            for _ in range(sokoban.MAX_TURNS)
        ]
    episode: Episode = [(prompt.text, False)]
    turns: list[str] = []
    for answer in answers:
        turns.append(answer)
        episode.append((answer, True))
        said = sokoban.reply(prompt.data, turns)
        if said is None or len(turns) == sokoban.MAX_TURNS:
            break
        episode.append((said, False))
    return episode


# Wordle: go through the letters, keeping those in their place, or guess anything.


def wordle_episode(rng: random.Random, task: Wordle, good: float) -> Episode:
    prompt = drawn(rng, task)
    level = WORDLE_LEVELS[0]
    secret = prompt.data["secret"]
    systematic = rng.random() < good
    episode: Episode = [(prompt.text, False)]
    for turn in range(level.turns):
        guess = rng.choice(level.secrets)
        if systematic:
            letter = "abcdef"[turn]
            guess = "".join(known if known <= letter else letter for known in secret)
        episode.append((tagged(guess), True))
        said = wordle.reply({"secret": secret}, [tagged(guess)])
        if said is None or turn + 1 == level.turns:
            break
        episode.append((said, False))
    return episode


# Knights and knaves: rule possibilities out, or name one.


def knights_episode(rng: random.Random, task: KnightsKnaves, good: float) -> Episode:
    prompt = drawn(rng, task)
    kinds = list(prompt.data["kinds"].values())
    if rng.random() < good:
        work = possibilities(prompt.data["statements"])
    else:
        kinds = [rng.choice(("knight", "knave")) for _ in kinds]
        work = ""
    said = ", ".join(f"{name} is a {kind}" for name, kind in zip(LETTERS, kinds, strict=False))
    return [(prompt.text, False), (work + tagged(said), True)]


def possibilities(statements: tuple[Any, ...]) -> str:
    """For each person, which possibilities agree with what they say; then the first that all allow.

    A line is `A: 01100110`: a digit for all knights, all but the last, and so on to all knaves. The
    last line has zeros, up to the number of the possibility that is left.
    """
    people = len(statements)
    worlds = list(itertools.product((True, False), repeat=people))
    numbers = [sum(1 << i for i, knight in enumerate(kinds) if knight) for kinds in worlds]
    agree = [
        [
            bool(truths(statement, people) >> number & 1) == kinds[i]
            for kinds, number in zip(worlds, numbers, strict=True)
        ]
        for i, statement in enumerate(statements)
    ]
    lines = [
        f"{name}: {''.join(str(int(fits)) for fits in row)}\n"
        for name, row in zip(LETTERS, agree, strict=False)
    ]
    left = [all(row[w] for row in agree) for w in range(len(worlds))].index(True)
    return "".join(lines) + "0" * left + f"{left + 1}\n"


# Countdown: try one sum after the other, or take the first.


def countdown_episode(rng: random.Random, task: Countdown, good: float) -> Episode:
    prompt = drawn(rng, task)
    a, b, c = prompt.data["numbers"]
    ways = [
        way
        for x, y, z in ((a, b, c), (a, c, b), (b, c, a))
        for way in (f"{x}+{y}-{z}", f"{x}-{y}-{z}", f"{y}-{x}-{z}")
    ]
    ways = [way for way in [f"{a}+{b}+{c}", *ways] if evaluate(way)[0] > 0]
    work = ""
    if rng.random() < good:
        for way in ways:
            value = evaluate(way)[0]
            work += f"{way}={value}\n"
            if value == prompt.data["target"]:
                break
    else:
        way = rng.choice(ways)
    return [(prompt.text, False), (work + tagged(way), True)]


# Mathematics: note what happens, calculate it step by step; or add up whatever numbers there are.


def mathematics_episode(rng: random.Random, task: Mathematics, good: float) -> Episode:
    problem = task.problem("train", rng.randrange(_FAR, 2 * _FAR))
    if rng.random() < good:
        work = f"{', '.join(noted(problem.text))}: {', '.join(problem.steps)}"
        answer = problem.answer
    else:
        total = sum(problem.numbers)
        work, answer = "+".join(map(str, problem.numbers)) + f"={total}", str(total)
    return [(f"{problem.text}\n", False), (f"{work}\n\\boxed{{{answer}}}", True)]


def noted(story: str) -> list[str]:
    """A story in short: what there was, and what happened to it, as `5`, `+3*4`, `-2`, `/2`."""
    notes = []
    for number, sentence in enumerate(story.split(". ")[:-1]):
        of = "*".join(re.findall(r"\d+", sentence))
        if number == 0:
            notes.append(of)
        elif "half" in sentence:
            notes.append("/2")
        elif "again" in sentence:
            notes.append("*2")
        else:
            notes.append(("-" if "loses" in sentence or "gives" in sentence else "+") + of)
    return notes


_STORY_PHRASES = (
    *NAMES, *(f" {thing}" for thing in THINGS), " has ", " buys ", " packs of ", " finds ",
    " gives ", " loses ", " wins as many", " again.", " away.", " half of them", "How many",
    " does", " have now?", "\\boxed{",
)  # fmt: skip

RECIPES: dict[str, Recipe] = {
    "sokoban": Recipe(
        task="sokoban",
        options={**TERSE, "level": 1},
        episode=sokoban_episode,
        good=0.35,
        batch=32,
        steps=900,
        max_new_tokens=200,
        turn_tokens=72,
        context=320,
        phrases=("<answer>", "</answer>", " || ", *MOVES),
    ),
    "wordle": Recipe(
        task="wordle",
        options={**TERSE, "level": 1},
        episode=wordle_episode,
        good=0.3,
        batch=32,
        steps=240,
        max_new_tokens=96,
        turn_tokens=12,
        phrases=("<answer>", "</answer>"),
    ),
    "knights-knaves": Recipe(
        task="knights-knaves",
        options={**TERSE, "level": 2},
        episode=knights_episode,
        good=0.3,
        steps=540,
        max_new_tokens=56,
        phrases=(
            "A: ", "B: ", "C: ", "<answer>", "</answer>", " is a knight", " is a knave",
            " is of the same kind as ",
            " is of another kind than ", "exactly ", " of us are knights", "zero", "one", "two",
            "three",
        ),
    ),
    "countdown": Recipe(
        task="countdown",
        options={**TERSE, "level": 1},
        episode=countdown_episode,
        good=0.25,
        max_new_tokens=112,
        phrases=("<answer>", "</answer>"),
    ),
    "mathematics": Recipe(
        task="mathematics",
        options={**TERSE, "level": 1},
        episode=mathematics_episode,
        good=0.35,
        batch=32,
        steps=1200,
        max_new_tokens=80,
        phrases=_STORY_PHRASES,
    ),
}  # fmt: skip
