r"""Whether a mathematical answer is right: what stands in `\boxed{}`, compared symbolically.

Promises: time and memory are bounded whatever the answer. It is looked at by ourselves before
math-verify (and sympy behind it) sees it: characters, commands, sizes of numbers and powers are
limited, and what is over the limits is no answer. Numbers are compared as fractions, without sympy.
What is left has `SECONDS`, by an alarm signal, so this is for the main thread of a scorer process;
running out of it is an error, and no judgement on the answer.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import Any

from echo_p2p.errors import ConfigError, NoAnswerError, TaskError

MAX_CHARACTERS = 200
MAX_DIGITS = 40
"""Of one number."""
MAX_POWER = 10_000
"""The product of all numbers in exponents."""
MAX_DEGREE = 40
"""The same where there are variables, whose powers may be multiplied out."""
SECONDS = 5

_BOX = "\\boxed{"
_SIGNS = str.maketrans(
    {"−": "-", "×": r"\times ", "÷": r"\div ", "·": r"\cdot ", "π": r"\pi ", "°": r"^\circ ",
     "≤": r"\le ", "≥": r"\ge ", "∞": r"\infty ", "∪": r"\cup "}
)  # fmt: skip
_COMMANDS = (
    "frac dfrac tfrac sqrt pi cdot times div left right text textbf mathrm mbox infty pm mp le leq "
    "ge geq lt gt ne neq cup cap in emptyset circ degree sin cos tan cot sec csc arcsin arccos "
    "arctan log ln exp theta alpha beta gamma binom lfloor rfloor lceil rceil quad qquad dots "
    "ldots cdots displaystyle mathbb begin end begingroup endgroup"
)
_ENVIRONMENTS = frozenset({"pmatrix", "bmatrix", "matrix", "cases"})
_COMMAND = re.compile(r"\\([A-Za-z]+|.)")
_KNOWN = frozenset(_COMMANDS.split())
_SPACING = frozenset("!,;: {}%$\\|")  # commands of one character
_NUMBER = re.compile(r"[0-9]+")
_RATIONAL = re.compile(
    r"(?P<sign>[-+]?)(?:(?P<whole>[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?P<point>\.[0-9]+)?"
    r"(?:/(?P<over>[0-9]+))?|\\[dt]?frac\{(?P<top>[0-9]+)\}\{(?P<bottom>[0-9]+)\})"
)
_MOST_DEPTH = 8
_MOST_ROOTS = 6
_MOST_POWERS = 8
_FACTORIAL_DIGITS = 3
_MOST_FACTORIALS = 2


def boxed(text: str) -> str:
    r"""What stands in the last `\boxed{...}` of a text; NoAnswerError where there is none."""
    start = text.rfind(_BOX)
    if start < 0:
        raise NoAnswerError(r"There is no \boxed{...} in it.")
    start += len(_BOX)
    depth = 1
    for at in range(start, min(len(text), start + 2 * MAX_CHARACTERS)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return text[start:at].strip()
    raise NoAnswerError(r"The \boxed{...} is not closed, or too long.")


def same_answer(right: str, answer: str) -> bool:
    """Whether `answer` is mathematically equal to the right one. NoAnswerError: it is unreadable.

    TaskError: they could not be compared in time.
    """
    if right.strip() == answer.strip():
        return True
    answer = bounded(answer)
    number, right_number = rational(answer), rational(right)
    if number is not None and right_number is not None:
        return number == right_number
    return _verified(right, answer)


def rational(text: str) -> Fraction | None:
    r"""The value of a plain number, as -3, 1,234, 2.50, 3/4 or \frac{3}{4}; None for others."""
    match = _RATIONAL.fullmatch(text.strip().strip("$").replace(" ", ""))
    if match is None or len(text) > MAX_CHARACTERS:
        return None
    parts = match.groupdict()
    if parts["top"] is not None:
        top, bottom = Fraction(int(parts["top"])), int(parts["bottom"])
    else:
        whole = parts["whole"].replace(",", "")
        top, bottom = Fraction(whole + (parts["point"] or "")), int(parts["over"] or 1)
    if bottom == 0:
        return None
    return top / bottom * (-1 if parts["sign"] == "-" else 1)


def bounded(answer: str) -> str:
    """The answer in ASCII, when it is within all limits; NoAnswerError says which it breaks."""
    if len(answer) > MAX_CHARACTERS:
        raise NoAnswerError(f"The answer is longer than {MAX_CHARACTERS} characters.")
    answer = answer.translate(_SIGNS)
    if not answer.isascii():
        raise NoAnswerError("The answer has characters that are neither ASCII nor common signs.")
    _check_commands(answer)
    if _depth(answer) > _MOST_DEPTH:
        raise NoAnswerError("The answer's braces are unbalanced, or too deep.")
    numbers = _NUMBER.findall(answer)
    if max(map(len, numbers), default=0) > MAX_DIGITS:
        raise NoAnswerError(f"The answer has a number of more than {MAX_DIGITS} digits.")
    if answer.count("\\sqrt") > _MOST_ROOTS or answer.count("^") > _MOST_POWERS or "**" in answer:
        raise NoAnswerError("The answer has too many roots or powers.")
    factorials = answer.count("!") - answer.count("\\!") + answer.count("\\binom")
    if factorials > _MOST_FACTORIALS or (
        factorials and max(map(len, numbers), default=0) > _FACTORIAL_DIGITS
    ):
        raise NoAnswerError("The answer has factorials of large numbers, or too many.")
    _check_powers(answer)
    return answer


def _check_commands(answer: str) -> None:
    for command in _COMMAND.findall(answer):
        if command not in _KNOWN and command not in _SPACING:
            raise NoAnswerError(f"The answer has the command \\{command[:20]}.")
    for name in re.findall(r"\\(?:begin|end)\{([^}]*)\}", answer):
        if name not in _ENVIRONMENTS:
            raise NoAnswerError(f"The answer has the environment {name[:20]}.")
    for word in re.findall(r"[A-Za-z_]{2,}\s*\(", _COMMAND.sub("", answer)):
        raise NoAnswerError(f"The answer calls {word[:20]}.")


def _depth(answer: str) -> int:
    """How deep the braces go; more than any limit if they do not match."""
    depth = deepest = 0
    for character in re.sub(r"\\[{}]", "", answer):
        depth += {"{": 1, "}": -1}.get(character, 0)
        deepest = max(deepest, depth)
        if depth < 0:
            return 1 << 20
    return deepest if depth == 0 else 1 << 20


def _check_powers(answer: str) -> None:
    variables = re.search("[A-Za-z]", _COMMAND.sub("", answer))
    most = MAX_DEGREE if variables else MAX_POWER
    product = 1
    at = answer.find("^")
    while at >= 0:
        exponent = _exponent(answer[at + 1 :].lstrip())
        if "^" in exponent or "!" in exponent:
            raise NoAnswerError("The answer has a power in an exponent.")
        for number in _NUMBER.findall(exponent):
            product *= max(1, int(number))
        if product > most:
            raise NoAnswerError(f"The answer has powers of more than {most}.")
        at = answer.find("^", at + 1)


def _exponent(rest: str) -> str:
    """What is raised to: a group in braces, a command, or one character."""
    if rest.startswith("("):
        raise NoAnswerError("An exponent of more than one character needs braces.")
    if not rest.startswith("{"):
        return rest[:1]
    depth = 0
    for at, character in enumerate(rest):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if depth == 0:
            return rest[: at + 1]
    return rest


def _verified(right: str, answer: str) -> bool:
    """What math-verify says. What it cannot parse is not equal; what it cannot decide, an error."""
    verify, timed_out = _math_verify()
    seconds = SECONDS if threading.current_thread() is threading.main_thread() else 0
    try:
        gold, found = _parsed(right, seconds), _parsed(answer, seconds)
        return bool(gold and found) and bool(
            verify(list(gold), list(found), timeout_seconds=seconds, raise_on_error=True)
        )
    except timed_out as error:
        raise TaskError(f"an answer was not compared within {seconds} s: {answer!a}.") from error
    except Exception:  # noqa: BLE001 - sympy raises anything over odd expressions
        return False


@lru_cache(maxsize=512)
def _parsed(latex: str, seconds: int) -> tuple[Any, ...]:
    from math_verify import LatexExtractionConfig, parse

    return tuple(
        parse(
            f"${latex}$",
            [LatexExtractionConfig(boxed_match_priority=-1)],
            parsing_timeout=seconds,
            raise_on_error=True,
        )
    )


def _math_verify() -> tuple[Callable[..., bool], type[BaseException]]:
    try:
        from math_verify import verify
        from math_verify.errors import TimeoutException
    except ImportError as error:
        raise ConfigError(
            "the package math-verify is not installed.",
            fix="Install the hub's extras: pip install 'echo-p2p[hub]'",
        ) from error
    return verify, TimeoutException
