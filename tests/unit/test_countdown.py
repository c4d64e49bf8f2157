"""Countdown against enumeration of all expressions, and its parser against Python's own."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echo_hub.tasks.countdown import LEVELS, Countdown, evaluate, make_instance
from echo_p2p.errors import NoAnswerError


def expressions(numbers: tuple[int, ...]) -> Iterator[tuple[Fraction, str]]:
    """Every expression that uses all the numbers, with its value."""
    if len(numbers) == 1:
        yield Fraction(numbers[0]), str(numbers[0])
    for size in range(1, len(numbers)):
        for chosen in itertools.combinations(range(len(numbers)), size):
            left = tuple(numbers[i] for i in chosen)
            right = tuple(n for i, n in enumerate(numbers) if i not in chosen)
            for (a, x), (b, y) in itertools.product(expressions(left), expressions(right)):
                yield a + b, f"({x}+{y})"
                yield a - b, f"({x}-{y})"
                yield a * b, f"({x}*{y})"
                if b:
                    yield a / b, f"({x}/{y})"


@pytest.mark.parametrize("level", [1, 2, 3])
def test_every_instance_can_be_solved_and_every_solution_is_found_right(level: int) -> None:
    task = Countdown({"level": level}, 0)
    for index in range(6 if level < 3 else 2):
        prompt = task.prompt("train", index)
        numbers, target = prompt.data["numbers"], prompt.data["target"]
        solutions = 0
        for value, text in itertools.islice(expressions(tuple(numbers)), 4000):
            reward = task.reward(prompt, f"<answer>{text}</answer>")
            assert reward == (value == target)
            solutions += reward == 1.0
        assert solutions or level == 3


@pytest.mark.parametrize("level", range(1, 6))
def test_instances_are_within_their_level(level: int) -> None:
    shape = LEVELS[level - 1]
    for number in range(50):
        numbers, target = make_instance(random.Random(number), shape)
        assert len(numbers) == shape.numbers
        assert all(1 <= n <= shape.highest for n in numbers)
        assert shape.target[0] <= target <= shape.target[1]


@given(st.text(alphabet="0123456789+-*/() ", max_size=14))
@settings(max_examples=150, deadline=None)
def test_the_parser_agrees_with_pythons(text: str) -> None:
    try:
        value, used = evaluate(text)
    except NoAnswerError:
        value = None
    else:
        assert used == [int(n) for n in re.findall("[0-9]+", text)]
    exact = re.sub("[0-9]+", r"Fraction('\g<0>')", text).strip()
    try:
        expected = eval(exact, {"Fraction": Fraction})
    except (SyntaxError, TypeError, ZeroDivisionError, MemoryError):
        expected = None
    if "**" in text or "//" in text or re.search(r"(^|[-+*/(])\s*[-+]", text):
        return  # powers, whole division and signs are Python's alone
    if re.search("[0-9]{7}", text):
        return
    assert value == expected


@pytest.mark.parametrize(
    "answer",
    ["", "5", "(1+2", "1+2)", "1+", "()", "1 2", "2**3", "10**10**9", "1/0", "1/(2-2)", "-1+2",
     "\uff11+2", "1\u00d72", "1\u2212 2", "1e3", "0x10", "1_0", "1+2=3", "1,2", "9" * 7, "(" * 128,
     "1+" * 200 + "1", "(" * 10**6, "__import__('os')", "1.5"],
)  # fmt: skip
def test_odd_answers_earn_nothing(answer: str) -> None:
    task = Countdown({"level": 1}, 0)
    assert task.reward(task.prompt("train", 0), f"<answer>{answer}</answer>") == 0.0


def test_two_answers_earn_nothing() -> None:
    task = Countdown({"level": 1}, 0)
    prompt = task.prompt("train", 0)
    (right, *_) = [
        text
        for value, text in expressions(tuple(prompt.data["numbers"]))
        if value == prompt.data["target"]
    ]
    assert task.reward(prompt, f"<answer>{right}</answer>") == 1.0
    assert task.reward(prompt, f"<answer>{right}</answer><answer>{right}</answer>") == 0.0
    assert task.reward(prompt, right) == 0.0
