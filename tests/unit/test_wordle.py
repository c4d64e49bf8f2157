"""Wordle against a second implementation, which counts letters instead of crossing them out."""

from __future__ import annotations

import itertools

import pytest

from echo_hub.tasks.base import Transcript
from echo_hub.tasks.wordle import LEVELS, Wordle
from echo_hub.tasks.wordle_words import COMMON, WORDS
from echo_p2p.environments.wordle import feedback, parse_guess, reply
from echo_p2p.errors import NoAnswerError


def said_of(secret: str, guess: str) -> str:
    """A letter is yellow while fewer of it were told, green anywhere or yellow before, than are."""
    marks = ""
    for place, letter in enumerate(guess):
        if secret[place] == letter:
            marks += "G"
            continue
        greens = sum(a == b == letter for a, b in zip(secret, guess, strict=True))
        yellow_before = sum(1 for i in range(place) if guess[i] == letter and marks[i] == "Y")
        marks += "Y" if greens + yellow_before < secret.count(letter) else "-"
    return marks


def test_feedback_is_right_for_all_words_of_four_letters_of_three_kinds() -> None:
    words = list(map("".join, itertools.product("abc", repeat=4)))
    for secret, guess in itertools.product(words, words):
        assert feedback(secret, guess) == said_of(secret, guess)


@pytest.mark.parametrize(
    ("secret", "guess", "said"),
    [("crane", "crane", "GGGGG"), ("crane", "slate", "--G-G"), ("apple", "paper", "YYGY-"),
     ("abbey", "babes", "YYGG-"), ("eerie", "geese", "-GY-G")],
)  # fmt: skip
def test_known_feedback(secret: str, guess: str, said: str) -> None:
    assert feedback(secret, guess) == said == said_of(secret, guess)


def test_the_words_are_words() -> None:
    assert len(set(WORDS)) == len(WORDS) > 800
    assert set(COMMON) < set(WORDS)
    assert all(len(word) == 5 and word.isascii() and word.islower() for word in WORDS)


def guess(word: str) -> str:
    return f"<answer>{word}</answer>"


@pytest.mark.parametrize("level", range(1, len(LEVELS) + 1))
def test_finding_the_word_is_rewarded(level: int) -> None:
    task = Wordle({"level": level}, 0)
    prompt = task.prompt("heldout", 4)
    assert prompt.turns is not None
    secret = prompt.data["secret"]
    other = next(word for word in LEVELS[level - 1].secrets if word != secret)
    assert secret not in prompt.text
    assert reply(prompt.turns.state, [guess(other)]) == f"{other} {said_of(secret, other)}\n"
    assert reply(prompt.turns.state, [guess(other), guess(secret)]) is None
    assert task.reward(prompt, Transcript((guess(other), guess(secret)), ("",))) == 1.0
    assert task.reward(prompt, Transcript((guess(other), "what?"), ("",))) == 0.0


@pytest.mark.parametrize(
    "text",
    ["", "crane", guess(""), guess("cran"), guess("cranes"), guess("cr4ne"), guess("c r a n e"),
     guess("cr\u0430ne"), guess("\uff43rane"), guess("crane") * 2, guess("a" * 10**6)],
)  # fmt: skip
def test_what_is_no_guess_wastes_a_turn(text: str) -> None:
    with pytest.raises(NoAnswerError):
        parse_guess(text, 5)
    said = reply({"secret": "crane"}, [text])
    assert said is not None
    assert said.startswith("This was no guess. ")
