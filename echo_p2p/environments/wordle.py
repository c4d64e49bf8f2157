"""`wordle/1`: find a secret word from what is said of each guess.

State: `{"secret": word}`. A turn is a guess, `<answer>crane</answer>`. Of each letter of a guess:
`G`, it stands there in the secret; `Y`, it stands elsewhere; `-`, it does not occur, or not that
often. A letter of the secret explains one letter of the guess at most, those in their place first
and the others from left to right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from echo_p2p.environments.tagged import plain, tagged_answer
from echo_p2p.errors import NoAnswerError

MAX_LETTERS = 12


def feedback(secret: str, guess: str) -> str:
    """What is said of `guess`; both words have the same length."""
    in_place = [a == b for a, b in zip(secret, guess, strict=True)]
    left = Counter(a for a, hit in zip(secret, in_place, strict=True) if not hit)
    said = []
    for letter, hit in zip(guess, in_place, strict=True):
        if hit:
            said.append("G")
        elif left[letter] > 0:
            left[letter] -= 1
            said.append("Y")
        else:
            said.append("-")
    return "".join(said)


def parse_guess(text: str, letters: int) -> str:
    """The word, in small letters, of an answer such as `<answer>crane</answer>`.

    NoAnswerError where there is no clear one of so many letters from a to z.
    """
    word = plain(tagged_answer(text)).lower()
    if len(word) != letters or not word.isalpha():
        raise NoAnswerError(f"A guess has {letters} letters from a to z.")
    return word


def reply(state: Mapping[str, Any], answers: Sequence[str]) -> str | None:
    """The last guess and what is said of it; None when it is the secret word."""
    secret = state["secret"]
    try:
        guess = parse_guess(answers[-1], len(secret))
    except NoAnswerError as error:
        return f"This was no guess. {error.message}\n"
    return None if guess == secret else f"{guess} {feedback(secret, guess)}\n"


def found(state: Mapping[str, Any], answers: Sequence[str]) -> bool:
    """Whether one of these turns is the secret word."""
    return any(reply(state, [answer]) is None for answer in answers)
