"""Whether a policy's answer is the one in a dataset's row. Each verifier also checks the row's.

An answer that cannot be read is wrong. What is compared is what `extract` finds in the answer, if
there is such a pattern, and otherwise what the verifier looks for by itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from echo_p2p.errors import ConfigError

_NUMBER = re.compile(
    r"(?:(?<![0-9A-Za-z)])[-+−])?(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)"
    r"(?:\.[0-9]+)?(?:/[0-9]+)?"
)
_MOST_CHARACTERS = 20_000
"""Of an answer, from its end; longer than any that is sampled in earnest."""


@dataclass(frozen=True)
class Verifier:
    """`check(right)` raises ValueError for a row's answer that nothing could be compared with."""

    check: Callable[[str], None]
    compare: Callable[[str, str], bool]


def extracted(pattern: str, answer: str) -> str | None:
    """The first group (or all) of the pattern's last match in an answer; None without one."""
    answer = answer[-_MOST_CHARACTERS:]
    if not pattern:
        return answer
    last = None
    for last in re.finditer(pattern, answer, re.DOTALL):  # noqa: B007 - the last is wanted
        pass
    if last is None:
        return None
    return last.group(1) if last.re.groups else last.group()


def number_in(text: str) -> Fraction | None:
    """The last number in a text, as 1,234 or -2.5 or 3/4."""
    found = _NUMBER.findall(text[-_MOST_CHARACTERS:])
    if not found:
        return None
    try:
        return Fraction(found[-1].replace(",", "").replace("−", "-"))
    except (ValueError, ZeroDivisionError):
        return None


def _check_number(right: str) -> None:
    if number_in(right) is None:
        raise ValueError("there is no number in it")


def _same_number(right: str, answer: str) -> bool:
    return number_in(answer) == number_in(right)


def _check_pattern(right: str) -> None:
    try:
        re.compile(right)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"it is no regular expression ({error})") from error


def _anything(right: str) -> None:
    return None


def _exact(right: str, answer: str) -> bool:
    return right.strip() == answer.strip()


def _matches(right: str, answer: str) -> bool:
    return re.fullmatch(right, answer.strip(), re.DOTALL) is not None


VERIFIERS = {
    "exact": Verifier(_anything, _exact),
    "number": Verifier(_check_number, _same_number),
    "regex": Verifier(_check_pattern, _matches),
}


def check_extract(pattern: str) -> None:
    """ConfigError if it is no regular expression."""
    try:
        _check_pattern(pattern)
    except ValueError as error:
        raise ConfigError(f"task.options.extract: {error}.") from error
