"""Knights and knaves against enumeration, from the puzzle's tuples and from its English text."""

from __future__ import annotations

import itertools
import random
import re

import pytest

from echo_hub.tasks.islanders import Statement, make_puzzle, solutions_of
from echo_hub.tasks.knights_knaves import KnightsKnaves, claims
from echo_p2p.errors import NoAnswerError


def holds(statement: Statement, knights: tuple[bool, ...]) -> bool:
    match statement:
        case ("knight", i):
            return knights[i]
        case ("knave", i):
            return not knights[i]
        case ("same", i, j):
            return knights[i] is knights[j]
        case ("different", i, j):
            return knights[i] is not knights[j]
        case ("count", k):
            return knights.count(True) == k
        case ("not", s):
            return not holds(s, knights)
        case ("and", s, t):
            return holds(s, knights) and holds(t, knights)
        case ("or", s, t):
            return holds(s, knights) or holds(t, knights)
        case ("if", s, t):
            return not holds(s, knights) or holds(t, knights)
        case ("iff", s, t):
            return holds(s, knights) is holds(t, knights)
    raise AssertionError(statement)


def all_solutions(statements: tuple[Statement, ...]) -> list[tuple[bool, ...]]:
    return [
        knights
        for knights in itertools.product((False, True), repeat=len(statements))
        if all(holds(s, knights) == knights[i] for i, s in enumerate(statements))
    ]


@pytest.mark.parametrize("people", range(2, 9))
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_puzzles_have_the_one_solution_that_enumeration_finds(people: int, depth: int) -> None:
    for number in range(3 if people > 6 else 10):
        puzzle = make_puzzle(random.Random(number), people, depth)
        assert all_solutions(puzzle.statements) == [puzzle.knights]


def test_all_solutions_are_counted() -> None:
    liars = (("knave", 1), ("knave", 0))
    assert solutions_of(liars).bit_count() == len(all_solutions(liars)) == 2
    assert solutions_of((("count", 0), ("knight", 0))) == 0 == len(all_solutions(
        (("count", 0), ("knight", 0))
    ))  # fmt: skip


NUMBERS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight"]


def true_in_english(words: str, kinds: dict[str, str]) -> bool:
    """Whether a clause is true, from its words alone."""

    def value(truth: bool) -> str:
        return "T" if truth else "F"

    words = re.sub(r"(\w+) is a (knight|knave)\b", lambda m: value(kinds[m[1]] == m[2]), words)
    words = re.sub(
        r"(\w+) is of (the same kind as|another kind than) (\w+)",
        lambda m: value((kinds[m[1]] == kinds[m[3]]) == m[2].startswith("the same")),
        words,
    )
    words = re.sub(
        r"exactly (\w+) of us are knights",
        lambda m: value(NUMBERS.index(m[1]) == list(kinds.values()).count("knight")),
        words,
    )
    while len(words) > 1:
        before = words
        words = re.sub(r"\(([TF])\)", r"\1", words)
        for pattern, table in (
            (r"^it is not so that ([TF])$", {"T": "F", "F": "T"}),
            (r"\(it is not so that ([TF])\)", {"T": "F", "F": "T"}),
        ):
            words = re.sub(pattern, lambda m, t=table: t[m[1]], words)  # type: ignore[misc]
        for form, holds_of in (
            ("if ([TF]) then ([TF])", lambda a, b: b or not a),
            ("([TF]) if and only if ([TF])", lambda a, b: a == b),
            ("([TF]) and ([TF])", lambda a, b: a and b),
            ("([TF]) or ([TF])", lambda a, b: a or b),
        ):
            for shell in (rf"^{form}$", rf"\({form}\)"):
                words = re.sub(
                    shell, lambda m, f=holds_of: value(f(m[1] == "T", m[2] == "T")), words
                )  # type: ignore[misc]
        assert words != before, words
    return words == "T"


@pytest.mark.parametrize("level", range(1, 8))
def test_the_english_text_says_what_the_solution_needs(level: int) -> None:
    task = KnightsKnaves({"level": level}, 2)
    for index in range(4):
        prompt = task.prompt("train", index)
        kinds = prompt.data["kinds"]
        said = dict(re.findall(r'^(\w+) says: "(.*)\."$', prompt.text, re.MULTILINE))
        assert set(said) == set(kinds)
        names = list(kinds)
        fitting = [
            assignment
            for assignment in itertools.product(("knight", "knave"), repeat=len(names))
            if all(
                true_in_english(said[name], dict(zip(names, assignment, strict=True)))
                == (kind == "knight")
                for name, kind in zip(names, assignment, strict=True)
            )
        ]
        assert fitting == [tuple(kinds.values())]


def test_the_answer_must_name_everybody_rightly() -> None:
    task = KnightsKnaves({"level": 2}, 0)
    prompt = task.prompt("train", 1)
    kinds = prompt.data["kinds"]
    right = [f"{name} is a {kind}" for name, kind in kinds.items()]

    def reward(*clauses: str) -> float:
        return task.reward(prompt, f"So: <answer>{', '.join(clauses)}</answer>")

    assert reward(*right) == reward(*right[::-1]) == 1.0
    assert reward(*right[:-1], right[-1] + ".") == 1.0
    assert reward(*right[:-1]) == reward(*right, right[0]) == reward(*right, "Eve is a knave") == 0
    swapped = right[0].replace("knight", "k").replace("knave", "knight").replace(" k", " knave")
    wrong = [
        f"{next(iter(kinds))} is a {'knave' if 'knight' in right[0] else 'knight'}",
        *right[1:],
    ]
    assert reward(*wrong) == reward(*right, wrong[0]) == reward(swapped) == 0
    assert task.reward(prompt, ", ".join(right)) == 0


@pytest.mark.parametrize(
    "text",
    ["", "A is a knight", "<answer>A is a knight or knave</answer>", "<answer>A is a spy</answer>",
     "<answer>A is a knight, A is a knave</answer>", "<answer>\u0410 is a knight</answer>",
     "<answer>,,,</answer>", "<answer>A is a knight</answer>" * 2, "<answer>" + "A" * 10**6],
)  # fmt: skip
def test_what_is_no_answer(text: str) -> None:
    with pytest.raises(NoAnswerError):
        claims(text)
