"""`knights-knaves`: who tells the truth, who lies? Two to eight people, exactly one solution.

The reward is 1 if the answer names the kind of every person once, and all rightly. The puzzles are
made here (`islanders`), because those of reasoning-gym (after Xie et al. 2024, arXiv 2410.23123)
come at 10 a second with eight people, and give part of the reward for naming everybody a knight;
they are at `reasoning-gym:knights_knaves`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from echo_hub.tasks.base import Prompt, Split
from echo_hub.tasks.islanders import MOST_PEOPLE, Puzzle, in_words, make_puzzle
from echo_hub.tasks.options import WordedOptions, read_options
from echo_hub.tasks.splits import draw, rng_of
from echo_p2p.environments.tagged import plain, tagged_answer
from echo_p2p.errors import NoAnswerError

DEFAULT_LEVEL = 3
_DEPTHS = (0, 0, 1, 1, 1, 2, 2)  # of levels 1, 2, ...: of 2, 3, ... people

NAMES = (
    "Ada", "Ben", "Cleo", "Dan", "Emma", "Finn", "Gina", "Hugo", "Iris", "Jack", "Kate", "Liam",
    "Mona", "Nils", "Olga", "Paul", "Rosa", "Sam", "Tara", "Uwe", "Vera", "Will", "Yara", "Zeno",
)  # fmt: skip
LETTERS = "ABCDEFGH"

RULES = """\
On an island everybody is a knight, who only says what is true, or a knave, who only says what is \
false. You meet {names}.
{said}
Who is what? Answer for all of them, like this: <answer>{form}</answer>
"""

_CLAIM = re.compile(r"\s*([A-Za-z]+) is a (knight|knave)\s*")


class KnightsKnavesOptions(WordedOptions):
    level: Annotated[int, Field(ge=1, le=MOST_PEOPLE - 1)] = DEFAULT_LEVEL
    """One person more than this. Levels 1 and 2 have plain statements, from 3 on `and`, `or`,
    `not`, `if` and `if and only if`, from 6 on within each other."""


class KnightsKnaves:
    """Puzzles of one level. What is said, whoever the people are, decides about the split."""

    def __init__(self, options: Mapping[str, Any], seed: int) -> None:
        self._options = read_options("knights-knaves", options, KnightsKnavesOptions)
        self._seed = seed
        self._people = self._options.level + 1
        self._depth = _DEPTHS[self._options.level - 1]

    def prompt(self, split: Split, index: int) -> Prompt:
        def puzzle(attempt: int) -> tuple[str, Puzzle]:
            rng = rng_of(self._seed, split, index, attempt)
            made = make_puzzle(rng, self._people, self._depth)
            return repr(made.statements), made

        _, made = draw(split, puzzle)
        names = tuple(LETTERS[: self._people])
        if self._options.wording == "full":
            names = tuple(rng_of(self._seed, "names", split, index).sample(NAMES, self._people))
        kinds = ["knight" if knight else "knave" for knight in made.knights]
        data = {
            "kinds": dict(zip(names, kinds, strict=True)),
            "statements": made.statements,
        }
        return Prompt(self._text(made, names), data)

    def reward(self, prompt: Prompt, answer: str) -> float:
        try:
            return float(claims(answer) == prompt.data["kinds"])
        except NoAnswerError:
            return 0.0

    def _text(self, puzzle: Puzzle, names: tuple[str, ...]) -> str:
        said = [in_words(statement, names) for statement in puzzle.statements]
        if self._options.wording == "terse":
            lines = zip(names, said, strict=True)
            return "".join(f"{name}: {words}.\n" for name, words in lines)
        lines = zip(names, said, strict=True)
        return RULES.format(
            names=", ".join(names[:-1]) + " and " + names[-1],
            said="\n".join(f'{name} says: "{words}."' for name, words in lines),
            form=", ".join(f"{name} is a knight/knave" for name in names),
        )


def claims(text: str) -> dict[str, str]:
    """What a text's answer says of each name; NoAnswerError if it is unclear about anybody."""
    said: dict[str, str] = {}
    for clause in plain(tagged_answer(text)).rstrip(".").split(","):
        match = _CLAIM.fullmatch(clause)
        if match is None:
            raise NoAnswerError(f"{clause[:40]!r} does not say who is what.")
        name, kind = match.groups()
        if name in said:
            raise NoAnswerError(f"{name} is named twice.")
        said[name] = kind
    return said
