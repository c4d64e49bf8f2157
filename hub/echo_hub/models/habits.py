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
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

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
from echo_p2p.environments.sokoban import MOVES, Board, parse_board

Episode = list[tuple[str, bool]]

TERSE: Mapping[str, Any] = {"wording": "terse"}
_HALF = 0.4  # of the plans for Sokoban take two turns
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


# Sokoban: a shortest plan that solves the board, in one turn or two; or moves at random.


def sokoban_episode(rng: random.Random, task: Sokoban, good: float) -> Episode:
    prompt = drawn(rng, task)
    board = parse_board(prompt.data["board"])
    if rng.random() < good:
        plan = shortest(board) or []
        halfway = rng.randrange(1, len(plan)) if len(plan) > 1 and rng.random() < _HALF else 0
        parts = [part for part in (plan[:halfway], plan[halfway:]) if part]
    else:
        parts = [
            [rng.choice(MOVES) for _ in range(rng.randint(1, 5))] for _ in range(sokoban.MAX_TURNS)
        ]
    episode: Episode = [(prompt.text, False)]
    turns: list[str] = []
    for moves in parts:
        turns.append(tagged(" || ".join(moves)))
        episode.append((turns[-1], True))
        said = sokoban.reply(prompt.data, turns)
        if said is None or len(turns) == sokoban.MAX_TURNS:
            break
        episode.append((said, False))
    return episode


@lru_cache(maxsize=1 << 16)
def shortest(board: Board) -> list[str] | None:
    """The fewest moves that solve a board, found in breadth; None if nothing does."""
    queue: deque[tuple[Board, list[str]]] = deque([(board, [])])
    seen = {(board.boxes, board.player)}
    while queue:
        here, moves = queue.popleft()
        if here.solved:
            return moves
        for move in MOVES:
            after = here.after(move)
            if (after.boxes, after.player) not in seen:
                seen.add((after.boxes, after.player))
                queue.append((after, [*moves, move]))
    return None


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


# Knights and knaves: go through the possibilities, or name one.


def knights_episode(rng: random.Random, task: KnightsKnaves, good: float) -> Episode:
    prompt = drawn(rng, task)
    kinds = list(prompt.data["kinds"].values())
    if rng.random() < good:
        work = "".join(tries_of(prompt.data["statements"]))
    else:
        kinds = [rng.choice(("knight", "knave")) for _ in kinds]
        work = ""
    said = ", ".join(f"{name} is a {kind}" for name, kind in zip(LETTERS, kinds, strict=False))
    return [(prompt.text, False), (work + tagged(said), True)]


def tries_of(statements: tuple[Any, ...]) -> list[str]:
    """Possibilities in a fixed order, as `TFT:TT`, until one fits.

    Before the colon, who would tell the truth; after it, whether what each says would be true, up
    to the first that does not agree with that.
    """
    people = len(statements)
    tries = []
    for kinds in itertools.product((True, False), repeat=people):
        number = sum(1 << i for i, knight in enumerate(kinds) if knight)
        true = [bool(truths(statement, people) >> number & 1) for statement in statements]
        agreeing = next((i for i in range(people) if true[i] != kinds[i]), people)
        shown = true[: agreeing + 1]
        tries.append(f"{_letters(kinds)}:{_letters(shown)}\n")
        if agreeing == people:
            break
    return tries


def _letters(values: Sequence[bool]) -> str:
    return "".join("T" if value else "F" for value in values)


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


# Mathematics: calculate what happens step by step, or add up whatever numbers there are.


def mathematics_episode(rng: random.Random, task: Mathematics, good: float) -> Episode:
    problem = task.problem("train", rng.randrange(_FAR, 2 * _FAR))
    if rng.random() < good:
        work, answer = ", ".join(problem.steps), problem.answer
    else:
        total = sum(problem.numbers)
        work, answer = "+".join(map(str, problem.numbers)) + f"={total}", str(total)
    return [(f"{problem.text}\n", False), (f"{work}\n\\boxed{{{answer}}}", True)]


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
        steps=320,
        max_new_tokens=220,
        turn_tokens=40,
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
        steps=360,
        max_new_tokens=80,
        phrases=(
            "<answer>", "</answer>", " is a knight", " is a knave", " is of the same kind as ",
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
        steps=600,
        max_new_tokens=48,
        phrases=_STORY_PHRASES,
    ),
}  # fmt: skip
