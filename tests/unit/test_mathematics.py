"""Mathematics: answers compared, bombs refused, problems checked by other means, files read."""

from __future__ import annotations

import json
import math
import random
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from echo_hub.tasks.math_check import bounded, boxed, rational, same_answer
from echo_hub.tasks.math_files import read_problems
from echo_hub.tasks.math_problems import STORY_LEVELS, make_exercise, make_story
from echo_hub.tasks.mathematics import Mathematics
from echo_p2p.errors import ConfigError, NoAnswerError


@pytest.mark.parametrize(
    ("right", "answer"),
    [
        ("18", "18"),
        ("18", "18.0"),
        ("18", "$18$"),
        ("1234", "1,234"),
        (r"\frac{1}{2}", "0.5"),
        ("1/2", r"\frac12"),
        ("-3", "\u22123"),
        (r"6\sqrt{2}", r"\sqrt{72}"),
        ("2, 3", "3, 2"),
        ("x^2-1", "(x-1)(x+1)"),
        (r"\frac{\pi}{4}", "0.25\u03c0"),
        ("2^{10}", "1024"),
        ("5", "x=5"),
        ("10", r"10\text{ apples}"),
        (r"\frac{1}{2}", r"\sin(\frac{\pi}{6})"),
    ],
)
def test_equal_answers(right: str, answer: str) -> None:
    assert same_answer(right, answer)


@pytest.mark.parametrize(
    ("right", "answer"),
    [("18", "81"), ("18", "-18"), ("1/2", "1/3"), ("(1,2)", "(2,1)"), ("x^2-1", "x^2+1"),
     ("2, 3", "2, 4"), ("5", ""), ("5", r"\text{five}"), ("5", "\\"), ("5", "1/0"), ("5", "0^{0}"),
     ("1234", "1,23,4"), ("5", "{}^{}^{}"), ("5", "$$"), (r"\frac{1}{2}", r"\frac{1}{0}")],
)  # fmt: skip
def test_unequal_answers(right: str, answer: str) -> None:
    assert not same_answer(right, answer)


@pytest.mark.parametrize(
    "answer",
    ["10**10**9", "10^{10^{9}}", "9^{9^{9^9}}", "((9^{99})^{99})^{99}", "2^(10^9)", "9!!!!!",
     "99999999!", r"\binom{1000000000}{500000000}", r"\sum_{i=1}^{10^9} i", r"\int_0^1 x",
     r"\lim_{x\to 0} x", "1" * 41, "1" * 10**6, "{" * 150, r"\frac{1}{" * 3000, "(x+1)^{900}",
     "(x+y+z)^{99}", "(x+1)^{20}(x+2)^{20}", r"\sqrt{" * 7 + "2" + "}" * 7, "x^1" * 9, "}{",
     "\uff11\uff12", "1\u0662", "\u0435", "__import__('os').system('x')", "exec(1)", "x\x00y\u200b",
     r"\write18{ls}", r"\def\a{\a\a}\a", r"\begin{verbatim}1\end{verbatim}"],
)  # fmt: skip
def test_bombs_and_look_alikes_are_refused_before_sympy_sees_them(answer: str) -> None:
    with pytest.raises(NoAnswerError):
        bounded(answer)
    task = Mathematics({}, 0)
    assert task.reward(task.prompt("train", 0), rf"\boxed{{{answer}}}") == 0.0


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=80) | st.text(alphabet="0123456789.,/-+$ \\frac{}", max_size=20))
def test_whatever_is_within_bounds_is_ascii_and_short(text: str) -> None:
    try:
        answer = bounded(text)
    except NoAnswerError:
        return
    assert answer.isascii()
    assert max(map(len, re.findall("[0-9]+", answer)), default=0) <= 40


@given(st.integers(-(10**9), 10**9), st.integers(1, 10**6))
def test_plain_numbers_are_what_they_say(top: int, bottom: int) -> None:
    value = Fraction(top, bottom)
    sign = "-" if top < 0 else ""
    assert rational(f"{top}/{bottom}") == value
    assert rational(f"{sign}\\frac{{{abs(top)}}}{{{bottom}}}") == value
    assert rational(f"{top:,}") == top
    assert rational(f"{sign}{abs(top)}.50") == Fraction(sign + str(abs(top))) + Fraction(
        sign + "1/2"
    )


@pytest.mark.parametrize(
    ("text", "inside"),
    [(r"\boxed{5}", "5"), (r"so \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
     (r"\boxed{1} no, \boxed{ 2 }", "2"), (r"\boxed{}", "")],
)  # fmt: skip
def test_the_last_box_counts(text: str, inside: str) -> None:
    assert boxed(text) == inside


@pytest.mark.parametrize("text", ["", "5", r"\boxed 5", r"\boxed{5", r"\boxed{" * 10**5])
def test_what_is_no_box(text: str) -> None:
    with pytest.raises(NoAnswerError):
        boxed(text)


def told(text: str) -> int:
    """How a story ends, read from its sentences."""
    has = 0
    for sentence in text.split(". "):
        numbers = list(map(int, re.findall("[0-9]+", sentence)))
        if " buys " in sentence:
            has += math.prod(numbers)
        elif " as many " in sentence:
            has *= 2
        elif " half " in sentence:
            has, rest = divmod(has, 2)
            assert rest == 0
        elif re.search(" loses | gives ", sentence):
            has -= numbers[0]
        elif re.search(" has [0-9]| finds ", sentence):
            has += numbers[0]
        assert has > 0
    return has


@pytest.mark.parametrize("level", STORY_LEVELS)
def test_stories_end_as_they_say(level: Any) -> None:
    for number in range(200):
        problem = make_story(random.Random(number), level)
        assert told(problem.text) == int(problem.answer)
        assert list(problem.numbers) == list(map(int, re.findall("[0-9]+", problem.text)))
        for step in problem.steps:
            left, _, right = step.partition("=")
            assert eval(left) == int(right)
        assert problem.steps[-1].endswith(f"={problem.answer}")


def solved(text: str) -> str:
    """The answer to an exercise, by sympy or by trying."""
    x = sympy.Symbol("x")
    inside = re.findall(r"\$([^$]*)\$", text)

    def python(latex: str) -> Any:
        latex = re.sub(r"\\frac\{(\d+)\}\{(\d+)\}", r"Rational(\1,\2)", latex)
        latex = re.sub(r"\\sqrt\{(\d+)\}", r"sqrt(\1)", latex)
        return sympy.sympify(re.sub(r"(\d)(x)", r"\1*\2", latex.replace("^", "**")))

    if text.startswith(("Solve", "Find all")):
        left, right = inside[-1 if text.startswith("Solve") else 0].split("=")
        return ", ".join(map(str, sorted(sympy.solve(python(left) - python(right or "0"), x))))
    numbers = list(map(int, re.findall("[0-9]+", text)))
    if "divisor" in text:
        return str(max(d for d in range(1, min(numbers) + 1) if not any(n % d for n in numbers)))
    if "remainder" in text:
        return str(numbers[0] ** numbers[1] % numbers[2])
    if "ways" in text:
        return str(sum(1 for c in range(2 ** numbers[1]) if c.bit_count() == numbers[0]))
    if "first" in text:
        count, first, second = numbers[:3]
        return str(sum(range(first, first + count * (second - first), second - first)))
    return str(sympy.latex(sympy.nsimplify(python(inside[0]))))


@pytest.mark.parametrize("level", [1, 2, 3])
def test_exercises_have_the_answers_that_others_find(level: int) -> None:
    for number in range(60):
        problem = make_exercise(random.Random(number), level)
        answer = solved(problem.text)
        same = sorted(answer.split(", ")) == sorted(problem.answer.split(", "))
        assert same or rational(answer) == rational(problem.answer) is not None or (
            answer.replace(" ", "") == problem.answer
        ), (problem, answer)  # fmt: skip


def write_rows(path: Path, rows: list[Any]) -> Path:
    if path.suffix == ".parquet":
        parquet.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


GSM8K = [
    {"question": f"What is {n} thousand?", "answer": f"It is {n}*1000.\n#### {n},000"}
    for n in range(1, 40)
]
MATH = [
    {"problem": f"Halve ${n}$.", "solution": f"So \\boxed{{\\frac{{{n}}}{{2}}}}.", "level": "1"}
    for n in range(1, 40)
]


@pytest.mark.parametrize("kind", [".jsonl", ".parquet"])
@pytest.mark.parametrize(("rows", "answers"), [(GSM8K, ["7,000", "7000"]), (MATH, ["3.5", "7/2"])])
def test_files_are_read(tmp_path: Path, kind: str, rows: Any, answers: list[str]) -> None:
    file = write_rows(tmp_path / f"train{kind}", rows)
    task = Mathematics({"file": str(file)}, 0)
    train = [task.prompt("train", index) for index in range(29)]
    apart = {task.prompt("heldout", index).text for index in range(60)}
    assert not apart & {prompt.text for prompt in train}
    everything = {prompt.text for prompt in train} | apart
    assert len(everything) > 30
    problem = read_problems(file)[6]
    for answer in answers:
        assert same_answer(problem.answer, answer)
    again = Mathematics({"file": str(file)}, 0)
    assert task.prompt("train", 3) == again.prompt("train", 3)


def test_every_problem_comes_before_any_comes_again(tmp_path: Path) -> None:
    file = write_rows(tmp_path / "train.jsonl", GSM8K)
    apart = write_rows(tmp_path / "test.jsonl", GSM8K[:4])
    task = Mathematics({"file": str(file), "heldout_file": str(apart)}, 0)
    epochs = [[task.prompt("train", e * 35 + i).text for i in range(35)] for e in range(2)]
    assert set(epochs[0]) == set(epochs[1])
    assert len(set(epochs[0])) == 35
    assert epochs[0] != epochs[1]
    assert {task.prompt("heldout", i).text for i in range(4)} == {
        f"{row['question']}\n\nSolve step by step, and write the final answer in \\boxed{{}}.\n"
        for row in GSM8K[:4]
    }


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([], "no rows"),
        ([{"text": "?"}], "row 1 has neither question nor problem, but text"),
        ([{"question": "?"}], "row 1 has neither answer nor solution"),
        ([GSM8K[0], {"question": 3, "answer": "3"}], "row 2: question is int"),
        ([{"question": "?", "answer": None}], "answer is NoneType"),
        ([{"question": "?", "answer": "#### "}], "empty answer"),
        ([{"problem": "?", "solution": "5"}], r"no answer\. There is no"),
        ([{"question": "?" * 70_000, "answer": "5"}], "70000 characters"),
        ([[1]], "not a JSON object"),
        (GSM8K[:1], "problems to train on and"),
    ],
)
def test_bad_rows_are_named(tmp_path: Path, rows: list[Any], why: str) -> None:
    file = write_rows(tmp_path / "bad.jsonl", rows)
    with pytest.raises(ConfigError, match=why):
        Mathematics({"file": str(file)}, 0)


def test_bad_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"question": \n')
    (tmp_path / "b.jsonl").write_bytes(b"\xff\xfe")
    (tmp_path / "c.parquet").write_bytes(b"PAR1 nothing")
    for name, why in [
        ("a.jsonl", "a.jsonl:1 is not JSON"),
        ("b.jsonl", "cannot read"),
        ("c.parquet", "cannot read"),
        ("d.jsonl", "cannot read"),
        ("d.parquet", "cannot read"),
        ("e.csv", "neither .jsonl nor .parquet"),
    ]:
        with pytest.raises(ConfigError, match=why):
            Mathematics({"file": str(tmp_path / name)}, 0)
    with pytest.raises(ConfigError, match="heldout_file, but no file"):
        Mathematics({"heldout_file": "a.jsonl"}, 0)
