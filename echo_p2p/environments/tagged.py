"""The answer in a text: what stands between `<answer>` and `</answer>`, when that is clear.

One rule for all built-in tasks: exactly one pair of tags. No pair is no answer, and two pairs are
none either, so listing several answers gains nothing. Time is linear in the text.
"""

from __future__ import annotations

from echo_p2p.errors import NoAnswerError

OPEN, CLOSE = "<answer>", "</answer>"
MAX_ANSWER_CHARACTERS = 4096
"""Longer ones are no answer: whatever reads it may take more than linear time."""


def tagged_answer(text: str) -> str:
    """The tagged answer without surrounding white space; NoAnswerError where there is none."""
    opened, closed = text.count(OPEN), text.count(CLOSE)
    if opened == 0 or closed == 0:
        raise NoAnswerError(f"There is no {OPEN}...{CLOSE} in it.")
    if opened > 1 or closed > 1:
        raise NoAnswerError("There is more than one answer in it.")
    _, _, rest = text.partition(OPEN)
    answer, close, _ = rest.partition(CLOSE)
    if not close:
        raise NoAnswerError(f"{CLOSE} comes before {OPEN}.")
    if len(answer) > MAX_ANSWER_CHARACTERS:
        raise NoAnswerError(f"The answer is longer than {MAX_ANSWER_CHARACTERS} characters.")
    return answer.strip()


def plain(answer: str) -> str:
    """The answer if it is ASCII; NoAnswerError for look-alikes, as a Cyrillic letter.

    Python's own `int`, `isdigit` and `lower` would take some, as full-width digits, for real ones.
    """
    if not answer.isascii():
        odd = next(character for character in answer if not character.isascii())
        raise NoAnswerError(f"The answer has a character that is not ASCII: {odd!a}.")
    return answer
