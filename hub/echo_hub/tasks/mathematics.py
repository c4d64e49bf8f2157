r"""`mathematics`: problems made here, or read from a file; the answer in `\boxed{}` is compared.

The reward is 1 if what stands in the last `\boxed{}` is mathematically equal to the right answer
(`math_check`), however it is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from echo_hub.tasks.base import Prompt, Split
from echo_hub.tasks.math_check import boxed, same_answer
from echo_hub.tasks.math_files import read_problems
from echo_hub.tasks.math_problems import STORY_LEVELS, Problem, make_exercise, make_story
from echo_hub.tasks.options import WordedOptions, read_options
from echo_hub.tasks.splits import draw, held_out, rng_of
from echo_p2p.errors import ConfigError, NoAnswerError

RULES = "Solve step by step, and write the final answer in \\boxed{}."


class MathematicsOptions(WordedOptions):
    style: Literal["grade-school", "competition"] = "grade-school"
    """What problems are made: stories with whole numbers, or exercises with LaTeX answers."""
    level: Annotated[int, Field(ge=1, le=3)] = 1
    """grade-school: 2, 3-4 or 5-7 things happen, numbers to 9, 20, 50; competition: linear
    equations, fractions and divisors; then also quadratics, roots and series; then also remainders
    and choices, with larger numbers."""
    file: str = ""
    """A .jsonl or .parquet file to read problems from instead; style and level mean nothing then.
    """
    heldout_file: str = ""
    """A file of held-out problems; without one a quarter of `file`'s are held out."""


class Mathematics:
    """Problems of one style and level, or of one file."""

    def __init__(self, options: Mapping[str, Any], seed: int) -> None:
        self._options = read_options("mathematics", options, MathematicsOptions)
        self._seed = seed
        self._files = _read_files(self._options)
        self._order = lru_cache(4)(self._shuffled)

    def prompt(self, split: Split, index: int) -> Prompt:
        problem = self._from_file(split, index) if self._files else self._made(split, index)
        text = f"{problem.text}\n"
        if self._options.wording == "full":
            text = f"{problem.text}\n\n{RULES}\n"
        return Prompt(text, {"answer": problem.answer})

    def reward(self, prompt: Prompt, answer: str) -> float:
        try:
            return float(same_answer(prompt.data["answer"], boxed(answer)))
        except NoAnswerError:
            return 0.0

    def problem(self, split: Split, index: int) -> Problem:
        """A problem made here, with its calculation: what bases are brought up on."""
        return self._made(split, index)

    def _made(self, split: Split, index: int) -> Problem:
        def make(attempt: int) -> tuple[str, Problem]:
            rng = rng_of(self._seed, split, index, attempt)
            if self._options.style == "competition":
                made = make_exercise(rng, self._options.level)
            else:
                made = make_story(rng, STORY_LEVELS[self._options.level - 1])
            return made.text, made

        return draw(split, make)[1]

    def _from_file(self, split: Split, index: int) -> Problem:
        """A file's problems, each once before any comes again, every time in another order."""
        problems = self._files[split]
        epoch, place = divmod(index, len(problems))
        return problems[self._order(split, epoch)[place]]

    def _shuffled(self, split: Split, epoch: int) -> list[int]:
        order = list(range(len(self._files[split])))
        rng_of(self._seed, "order", split, epoch).shuffle(order)
        return order


def _read_files(options: MathematicsOptions) -> dict[Split, list[Problem]]:
    if not options.file:
        if options.heldout_file:
            raise ConfigError("task.options has heldout_file, but no file.")
        return {}
    problems = read_problems(Path(options.file))
    if options.heldout_file:
        heldout = read_problems(Path(options.heldout_file))
        apart = {problem.text for problem in heldout}
        train = [problem for problem in problems if problem.text not in apart]
    else:
        heldout = [problem for problem in problems if held_out(problem.text)]
        train = [problem for problem in problems if not held_out(problem.text)]
    if not train or not heldout:
        raise ConfigError(
            f"{options.file} has {len(train)} problems to train on and {len(heldout)} held out.",
            fix="Use a file with more of them, or name a heldout_file.",
        )
    return {"train": train, "heldout": heldout}
