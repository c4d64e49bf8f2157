r"""Mathematics problems that are made, not read: small stories, and exercises in competition style.

A grade-school problem is a story: somebody has some things, and then things happen to them, one
after the other. A competition problem is one exercise of a kind drawn by chance, with a LaTeX
answer. The texts are our own.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

NAMES = ("Ada", "Ben", "Cleo", "Dan", "Emma", "Finn", "Gina", "Hugo")
THINGS = ("apples", "books", "cards", "coins", "eggs", "pens", "shells", "stamps")


@dataclass(frozen=True)
class Problem:
    """`numbers` are those in the text, in order; `steps` the calculation, as `3*4=12`, in order."""

    text: str
    answer: str
    numbers: tuple[int, ...] = ()
    steps: tuple[str, ...] = ()


@dataclass(frozen=True)
class StoryLevel:
    """`events`: fewest and most things that happen; `highest` number in the text; `most` things
    anybody has at any time."""

    events: tuple[int, int]
    highest: int
    most: int


STORY_LEVELS = (
    StoryLevel(events=(2, 2), highest=9, most=60),
    StoryLevel(events=(3, 4), highest=20, most=400),
    StoryLevel(events=(5, 7), highest=50, most=2000),
)


def make_story(rng: random.Random, level: StoryLevel) -> Problem:
    """A grade-school problem. All its numbers are positive and whole."""
    name, things = rng.choice(NAMES), rng.choice(THINGS)
    has = rng.randint(2, level.highest)
    sentences, numbers, steps = [f"{name} has {has} {things}."], [has], []
    for _ in range(rng.randint(*level.events)):
        sentence, used, step, has = _event(rng, name, things, has, level)
        sentences.append(sentence)
        numbers += used
        steps += step
    sentences.append(f"How many {things} does {name} have now?")
    return Problem(" ".join(sentences), str(has), tuple(numbers), tuple(steps))


def _event(
    rng: random.Random, name: str, things: str, has: int, level: StoryLevel
) -> tuple[str, list[int], list[str], int]:
    """What happens: a sentence, the numbers in it, the calculation, and how many there are then."""
    kind = rng.choice(("packs", "packs", "finds", "gives", "loses", "doubles", "halves"))
    if kind == "packs":
        a, b = rng.randint(2, min(9, level.highest)), rng.randint(2, min(9, level.highest))
        if has + a * b <= level.most:
            text = f"{name} buys {a} packs of {b} {things}."
            return text, [a, b], [f"{a}*{b}={a * b}", f"{has}+{a * b}={has + a * b}"], has + a * b
    if kind == "doubles" and 2 * has <= level.most:
        text = f"{name} wins as many {things} again."
        return text, [], [f"{has}+{has}={2 * has}"], 2 * has
    if kind == "halves" and has % 2 == 0:
        return f"{name} gives half of them away.", [], [f"{has}/2={has // 2}"], has // 2
    if kind in ("gives", "loses") and has > 2:
        a = rng.randint(2, min(level.highest, has - 1))
        lost = f"loses {a} {things}" if kind == "loses" else f"gives {a} {things} away"
        return f"{name} {lost}.", [a], [f"{has}-{a}={has - a}"], has - a
    a = rng.randint(2, level.highest)
    return f"{name} finds {a} {things}.", [a], [f"{has}+{a}={has + a}"], has + a


def make_exercise(rng: random.Random, level: int) -> Problem:
    """A competition problem of level 1 to 3."""
    size = (9, 20, 60)[level - 1]
    return rng.choice(_EXERCISES[level - 1])(rng, size)


def _linear(rng: random.Random, size: int) -> Problem:
    x, b = rng.randint(-size, size), rng.randint(1, size)
    a, c = rng.sample(range(2, size + 1), 2)
    right = (a - c) * x + b
    return Problem(f"Solve for $x$: ${a}x+{b}={c}x{right:+d}$.", str(x))


def _fractions(rng: random.Random, size: int) -> Problem:
    a, c = rng.randint(1, size), rng.randint(1, size)
    b, d = rng.randint(2, size), rng.randint(2, size)
    total = Fraction(a, b) + Fraction(c, d)
    text = f"Compute $\\frac{{{a}}}{{{b}}}+\\frac{{{c}}}{{{d}}}$."
    return Problem(text, _latex(total))


def _common_divisor(rng: random.Random, size: int) -> Problem:
    g = rng.randint(2, size)
    a, b = g * rng.randint(2, size), g * rng.randint(2, size)
    return Problem(f"What is the greatest common divisor of ${a}$ and ${b}$?", str(math.gcd(a, b)))


def _remainder(rng: random.Random, size: int) -> Problem:
    a, n, m = rng.randint(2, size), rng.randint(3, 4 * size), rng.randint(3, size + 3)
    return Problem(
        f"What is the remainder when ${a}^{{{n}}}$ is divided by ${m}$?", str(pow(a, n, m))
    )


def _quadratic(rng: random.Random, size: int) -> Problem:
    p, q = rng.sample(range(-size, size + 1), 2)
    middle, last = -(p + q), p * q
    equation = "x^2" + (f"{middle:+d}x" if middle else "") + (f"{last:+d}" if last else "")
    text = f"Find all solutions of ${equation}=0$, separated by a comma."
    return Problem(text, f"{min(p, q)}, {max(p, q)}")


def _surd(rng: random.Random, size: int) -> Problem:
    factor, rest = rng.randint(2, size), rng.choice((2, 3, 5, 6, 7, 10, 11, 13))
    return Problem(f"Simplify $\\sqrt{{{factor**2 * rest}}}$.", f"{factor}\\sqrt{{{rest}}}")


def _series(rng: random.Random, size: int) -> Problem:
    first, step, count = rng.randint(1, size), rng.randint(2, size), rng.randint(5, 5 + size)
    total = count * (2 * first + (count - 1) * step) // 2
    terms = ", ".join(str(first + i * step) for i in range(3))
    return Problem(f"Find the sum of the first ${count}$ terms of ${terms}, \\dots$.", str(total))


def _choices(rng: random.Random, size: int) -> Problem:
    n = rng.randint(4, 4 + size // 4)
    k = rng.randint(2, n - 2)
    text = f"In how many ways can ${k}$ of ${n}$ people be chosen for a team?"
    return Problem(text, str(math.comb(n, k)))


Exercise = Callable[[random.Random, int], Problem]
_EASY: tuple[Exercise, ...] = (_linear, _fractions, _common_divisor)
_HARDER: tuple[Exercise, ...] = (*_EASY, _quadratic, _surd, _series)
_EXERCISES = (_EASY, _HARDER, (*_HARDER, _remainder, _choices))


def _latex(value: Fraction) -> str:
    if value.denominator == 1:
        return str(value.numerator)
    return f"\\frac{{{value.numerator}}}{{{value.denominator}}}"
