"""Whether a policy's answer is the one in a dataset's row. Each verifier also checks the row's.

An answer that cannot be read is wrong, and so is a program that fails. What is compared is what
`extract` finds in the answer, if there is such a pattern, and otherwise what the verifier looks for
by itself.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from echo_hub.tasks.math_check import boxed, same_answer
from echo_hub.tasks.sandbox import run_python
from echo_p2p.errors import ConfigError, NoAnswerError

_NUMBER = re.compile(
    r"(?:(?<![0-9A-Za-z)])[-+−])?(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)"
    r"(?:\.[0-9]+)?(?:/[0-9]+)?"
)
_BLOCK = re.compile(r"```[a-z0-9]*\n(.*?)```", re.DOTALL)
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


def _same_value(right: str, answer: str) -> bool:
    try:
        return same_answer(right, boxed(answer) if "\\boxed{" in answer else answer.strip())
    except NoAnswerError:
        return False


def _check_program(right: str) -> None:
    try:
        compile(right, "tests", "exec")
    except (SyntaxError, ValueError, RecursionError) as error:
        raise ValueError(f"it is no Python ({error})") from error


def _passes(right: str, answer: str) -> bool:
    """Does the answer's code, followed by the row's tests, come to its end? In the sandbox."""
    mark = secrets.token_hex(8)  # so that leaving early is not coming to the end
    ran = run_python(f"{_code_in(answer)}\n{right}\nprint('\\n' + {mark!r})")
    return ran.well and ran.stdout.endswith(f"\n{mark}\n")


def _code_in(answer: str) -> str:
    """The last block in ``` that an answer has, or all of it."""
    blocks = _BLOCK.findall(answer)
    return blocks[-1] if blocks else answer


def _anything(right: str) -> None:
    return None


def _exact(right: str, answer: str) -> bool:
    return right.strip() == answer.strip()


def _matches(right: str, answer: str) -> bool:
    return re.fullmatch(right, answer.strip(), re.DOTALL) is not None


VERIFIERS = {
    "exact": Verifier(_anything, _exact),
    "number": Verifier(_check_number, _same_number),
    "symbolic": Verifier(_anything, _same_value),
    "python": Verifier(_check_program, _passes),
    "regex": Verifier(_check_pattern, _matches),
}


def check_extract(pattern: str) -> None:
    """ConfigError if it is no regular expression."""
    try:
        _check_pattern(pattern)
    except ValueError as error:
        raise ConfigError(f"task.options.extract: {error}.") from error
