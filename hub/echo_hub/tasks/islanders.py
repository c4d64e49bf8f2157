"""Knights and knaves: statements, puzzles with exactly one solution, and their wording.

A statement is a tuple, its first element its kind:

    ("knight", i)  ("knave", i)        person i is one
    ("same", i, j)  ("different", i, j)
    ("count", k)                       exactly k of all are knights
    ("not", s)  ("and", s, t)  ("or", s, t)  ("if", s, t)  ("iff", s, t)

`or` is inclusive, `if` is material. With n people there are 2^n assignments; bit i of assignment a
says whether person i is a knight. A statement is turned into the set of the assignments in which it
is true, as an integer with 2^n bits, so that a puzzle is checked against all of them at once.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

Statement = tuple[Any, ...]

MOST_PEOPLE = 8
_MOST_TRIES = 10_000
_JOINERS = ("and", "or", "if", "iff")
_NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight")


@dataclass(frozen=True)
class Puzzle:
    """`statements[i]` is what person i says; `knights[i]` is true if i is a knight."""

    statements: tuple[Statement, ...]
    knights: tuple[bool, ...]


def make_puzzle(rng: random.Random, people: int, depth: int) -> Puzzle:
    """A puzzle with exactly one solution.

    Args:
        depth: most connectives inside each other; 0 has plain statements about one or two people.
    """
    for _ in range(_MOST_TRIES):
        statements = tuple(_draw(rng, people, speaker, depth) for speaker in range(people))
        solutions = solutions_of(statements)
        if solutions and solutions & (solutions - 1) == 0:
            only = solutions.bit_length() - 1
            return Puzzle(statements, tuple(bool(only >> i & 1) for i in range(people)))
    raise AssertionError(f"{_MOST_TRIES} puzzles of {people} people, none with one solution")


def solutions_of(statements: tuple[Statement, ...]) -> int:
    """The set of assignments in which knights say what is true and knaves what is not."""
    people = len(statements)
    everything = _everything(people)
    solutions = everything
    for speaker, statement in enumerate(statements):
        solutions &= everything ^ _knight(speaker, people) ^ truths(statement, people)
    return solutions


def truths(statement: Statement, people: int) -> int:
    """The set of assignments in which a statement is true."""
    everything = _everything(people)
    kind, *parts = statement
    if kind == "knight":
        return _knight(parts[0], people)
    if kind == "knave":
        return everything ^ _knight(parts[0], people)
    if kind == "count":
        return _count(parts[0], people)
    if kind in ("same", "different"):
        apart = _knight(parts[0], people) ^ _knight(parts[1], people)
        return apart if kind == "different" else everything ^ apart
    first = truths(parts[0], people)
    if kind == "not":
        return everything ^ first
    second = truths(parts[1], people)
    if kind == "and":
        return first & second
    if kind == "or":
        return first | second
    if kind == "if":
        return everything ^ first | second
    return everything ^ first ^ second


def _everything(people: int) -> int:
    return (1 << (1 << people)) - 1


@lru_cache(maxsize=128)
def _knight(person: int, people: int) -> int:
    return sum(1 << a for a in range(1 << people) if a >> person & 1)


@lru_cache(maxsize=128)
def _count(knights: int, people: int) -> int:
    return sum(1 << a for a in range(1 << people) if a.bit_count() == knights)


def _draw(rng: random.Random, people: int, speaker: int, depth: int) -> Statement:
    if depth > 0 and rng.random() < 0.7:
        kind = rng.choice((*_JOINERS, "not"))
        first = _draw(rng, people, speaker, depth - 1)
        if kind == "not":
            return ("not", first)
        second = _draw(rng, people, speaker, depth - 1)
        return (kind, first, second) if first != second else first
    kind = rng.choice(("knight", "knave", "knight", "knave", "same", "different", "count"))
    if kind == "count":
        return ("count", rng.randint(0, people))
    others = [person for person in range(people) if person != speaker]
    if kind in ("same", "different"):
        pair = rng.sample(range(people), 2)
        return (kind, min(pair), max(pair))
    return (kind, rng.choice(others))


def in_words(statement: Statement, names: tuple[str, ...]) -> str:
    """A statement as a clause; what is joined stands in parentheses where it could be misread."""
    kind, *parts = statement
    if kind in ("knight", "knave"):
        return f"{names[parts[0]]} is a {kind}"
    if kind in ("same", "different"):
        what = "the same kind as" if kind == "same" else "another kind than"
        return f"{names[parts[0]]} is of {what} {names[parts[1]]}"
    if kind == "count":
        return f"exactly {_NUMBERS[parts[0]]} of us are knights"
    inner = [_within(part, names) for part in parts]
    if kind == "not":
        return f"it is not so that {inner[0]}"
    if kind == "if":
        return f"if {inner[0]} then {inner[1]}"
    return {"and": " and ", "or": " or ", "iff": " if and only if "}[kind].join(inner)


def _within(statement: Statement, names: tuple[str, ...]) -> str:
    words = in_words(statement, names)
    return f"({words})" if statement[0] in (*_JOINERS, "not") else words
