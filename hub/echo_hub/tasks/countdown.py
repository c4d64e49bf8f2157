"""`countdown`: reach a number with + - * / from given ones, each used exactly once.

Instances can be solved by construction; whatever expression has the right value is right. Its value
is computed exactly, by a parser that knows numbers, four operators and parentheses and nothing
else. reasoning-gym's countdown was not used: it makes 50 instances a second, and its scoring hands
the answer to sympy's `parse_expr`, which evaluates it as Python.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any

from pydantic import Field

from echo_hub.tasks.base import Prompt, Split
from echo_hub.tasks.options import WordedOptions, read_options
from echo_hub.tasks.splits import draw, rng_of
from echo_p2p.environments.tagged import plain, tagged_answer
from echo_p2p.errors import NoAnswerError

DEFAULT_LEVEL = 3
MAX_EXPRESSION = 256  # characters
_MOST_TRIES = 10_000
_TOKEN = re.compile(r"\s*(?:([0-9]{1,6})|([-+*/()]))")


@dataclass(frozen=True)
class Level:
    numbers: int
    highest: int
    operators: str
    target: tuple[int, int]


LEVELS = (
    Level(3, 9, "+-", (1, 27)),
    Level(3, 20, "+-*", (1, 100)),
    Level(4, 50, "+-*/", (1, 100)),
    Level(5, 99, "+-*/", (1, 200)),
    Level(6, 100, "+-*/", (100, 999)),
)

RULES = """\
Write an expression that equals {target} with the numbers {numbers}. Use each number exactly once, \
and + - * / and parentheses as you like. Answer with the expression alone, like this: \
<answer>(1 + 2) * 3</answer>
"""


class CountdownOptions(WordedOptions):
    level: Annotated[int, Field(ge=1, le=len(LEVELS))] = DEFAULT_LEVEL
    """1: three numbers up to 9, + and -; 2: three up to 20, + - *; 3: four up to 50, all operators;
    4: five up to 99; 5: six up to 100, and a target from 100 to 999."""


class Countdown:
    """Instances of one level. The same numbers and target, in any order, are in the same split."""

    def __init__(self, options: Mapping[str, Any], seed: int) -> None:
        self._options = read_options("countdown", options, CountdownOptions)
        self._seed = seed
        self._level = LEVELS[self._options.level - 1]

    def prompt(self, split: Split, index: int) -> Prompt:
        def instance(attempt: int) -> tuple[str, tuple[list[int], int]]:
            rng = rng_of(self._seed, split, index, attempt)
            numbers, target = make_instance(rng, self._level)
            return f"{sorted(numbers)} {target}", (numbers, target)

        _, (numbers, target) = draw(split, instance)
        text = f"{','.join(map(str, numbers))}={target}?\n"
        if self._options.wording == "full":
            text = RULES.format(target=target, numbers=", ".join(map(str, numbers)))
        return Prompt(text, {"numbers": numbers, "target": target})

    def reward(self, prompt: Prompt, answer: str) -> float:
        try:
            value, used = evaluate(tagged_answer(answer))
        except NoAnswerError:
            return 0.0
        right = value == prompt.data["target"] and sorted(used) == sorted(prompt.data["numbers"])
        return float(right)


def make_instance(rng: random.Random, level: Level) -> tuple[list[int], int]:
    """Numbers, and a target that they reach without ever leaving the positive integers."""
    for _ in range(_MOST_TRIES):
        numbers = [rng.randint(1, level.highest) for _ in range(level.numbers)]
        values = list(numbers)
        while len(values) > 1:
            a, b = (values.pop(rng.randrange(len(values))) for _ in range(2))
            values.append(_combined(a, b, rng.choice(level.operators)))
            if values[-1] < 1:
                break
        if len(values) == 1 and level.target[0] <= values[0] <= level.target[1]:
            return numbers, values[0]
    raise AssertionError(f"no instance of {level} in {_MOST_TRIES} tries")


def _combined(a: int, b: int, operator: str) -> int:
    """The result, or 0 where there is no positive whole one."""
    if operator == "+":
        return a + b
    if operator == "-":
        return max(a - b, 0)
    if operator == "*":
        return a * b
    return a // b if a % b == 0 else 0


def evaluate(expression: str) -> tuple[Fraction, list[int]]:
    """The exact value of an expression, and the numbers in it; NoAnswerError if it is none.

    Bounded: at most 256 characters of ASCII, and no power, so values stay small.
    """
    if len(expression) > MAX_EXPRESSION:
        raise NoAnswerError(f"The expression is longer than {MAX_EXPRESSION} characters.")
    parser = _Parser(plain(expression))
    value = parser.sum()
    if parser.next != "":
        raise NoAnswerError(f"The expression is over before {parser.next!r}.")
    return value, parser.numbers


class _Parser:
    """Recursive descent; `next` is the token ahead, empty at the end."""

    def __init__(self, text: str) -> None:
        self._tokens = iter(_tokens(text))
        self.next = ""
        self.numbers: list[int] = []
        self._advance()

    def _advance(self) -> None:
        self.next = next(self._tokens, "")

    def sum(self) -> Fraction:
        value = self._product()
        while self.next in ("+", "-"):
            sign = 1 if self.next == "+" else -1
            self._advance()
            value += sign * self._product()
        return value

    def _product(self) -> Fraction:
        value = self._factor()
        while self.next in ("*", "/"):
            operator = self.next
            self._advance()
            factor = self._factor()
            if operator == "/" and factor == 0:
                raise NoAnswerError("The expression divides by zero.")
            value = value * factor if operator == "*" else value / factor
        return value

    def _factor(self) -> Fraction:
        ahead = self.next
        self._advance()
        if ahead == "(":
            value = self.sum()
            if self.next != ")":
                raise NoAnswerError("A parenthesis is not closed.")
            self._advance()
            return value
        if not ahead.isdigit():
            raise NoAnswerError(f"A number is missing before {ahead!r}.")
        self.numbers.append(int(ahead))
        return Fraction(int(ahead))


def _tokens(text: str) -> list[str]:
    text = text.rstrip()
    tokens, at = [], 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise NoAnswerError(f"{text[at : at + 20]!r} is no part of an expression.")
        tokens.append(match[1] or match[2])
        at = match.end()
    return tokens
