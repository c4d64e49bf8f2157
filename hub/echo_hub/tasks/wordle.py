"""`wordle`: find a secret word in six guesses, told of each letter whether it is right.

The secret words are a list of our own (`wordle_words`). Any five letters may be guessed: a guess
that is no word only wastes a turn. Level 1 has secrets that are no words at all, three letters from
a to f: what a small base begins with, since it can be played by the letters alone, and secrets that
were never seen can be found. The reward is 1 if the word was found.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from echo_hub.tasks.base import Prompt, Split, Transcript, Turns
from echo_hub.tasks.options import WordedOptions, read_options
from echo_hub.tasks.splits import draw, rng_of
from echo_hub.tasks.wordle_words import COMMON, WORDS
from echo_p2p.environments.wordle import found


@dataclass(frozen=True)
class Level:
    """`secrets`: the words to find; `letters` of which they are made, for the rules; `turns`."""

    secrets: tuple[str, ...]
    letters: str
    turns: int


LEVELS = (
    Level(tuple(map("".join, itertools.product("abcdef", repeat=3))), "a to f", 6),
    Level(COMMON, "a to z", 8),
    Level(WORDS, "a to z", 6),
)
DEFAULT_LEVEL = 3

RULES = """\
Find the secret {what} of {length} letters from {letters}. You have {turns} guesses.
Give each one like this: <answer>{example}</answer>. You are told of each letter of a guess: \
G, it stands there in the secret; Y, it stands elsewhere in it; -, it does not occur (or not as \
often).
"""


class WordleOptions(WordedOptions):
    level: Annotated[int, Field(ge=1, le=len(LEVELS))] = DEFAULT_LEVEL
    """1: any three letters from a to f, 6 guesses; 2: the most common words of five letters, 8
    guesses; 3: all our words of five letters, 6 guesses."""


class Wordle:
    """Secret words of one level, a quarter of which are held out."""

    environments = ("wordle/1",)

    def __init__(self, options: Mapping[str, Any], seed: int) -> None:
        self._options = read_options("wordle", options, WordleOptions)
        self._seed = seed
        self._level = LEVELS[self._options.level - 1]

    def prompt(self, split: Split, index: int) -> Prompt:
        def secret(attempt: int) -> tuple[str, None]:
            return rng_of(self._seed, split, index, attempt).choice(self._level.secrets), None

        word, _ = draw(split, secret)
        state = {"secret": word}
        return Prompt(self._text(), state, Turns(self._level.turns, self.environments[0], state))

    def reward(self, prompt: Prompt, transcript: Transcript) -> float:
        return float(found(prompt.data, transcript.answers))

    def _text(self) -> str:
        if self._options.wording == "terse":
            return "?\n"
        words = self._options.level > 1
        return RULES.format(
            what="word" if words else "string",
            length=len(self._level.secrets[0]),
            letters=self._level.letters,
            turns=self._level.turns,
            example="crane" if words else "abc",
        )
