"""What reasoning-gym may be given to score: some of its datasets evaluate an answer as Python.

`eval`, and sympy's `parse_expr` which calls it, run whatever code an answer holds, and answers come
from the network. So for these datasets only an answer that can be nothing but data, or nothing but
an expression of bounded size, is passed on; any other is scored as no answer at all. A test reads
the package's source, so that a release in which another dataset evaluates answers is noticed.
"""

from __future__ import annotations

import re

LISTS = frozenset({"binary_matrix", "n_queens", "spiral_matrix", "string_insertion"})
"""Datasets that try an answer as a Python list."""
ARITHMETIC = frozenset({"countdown", "puzzle24"})
"""Datasets that evaluate an expression of numbers."""
ALGEBRA = frozenset({"intermediate_integration", "polynomial_multiplication", "simple_integration"})
"""Datasets that evaluate an expression with variables and functions."""

_MAX_LIST, _MAX_EXPRESSION = 16_384, 512
_MAX_POWER = 200
# no call, no attribute, nothing that multiplies
_LIST = re.compile(r"[A-Za-z0-9\s\[\],'\"_+-]*")
_ARITHMETIC = re.compile(r"(?:[0-9]{1,12}(?![0-9])|[-+/() ]|\*(?!\*)|\s)*")
_ALGEBRA = re.compile(
    r"(?:(?<![A-Za-z0-9.])[0-9]{1,12}(?:\.[0-9]{1,12})?(?![0-9.])|[-+*/() \s]"
    r"|(?<![A-Za-z])(?:sin|cos|tan|exp|log|sqrt|asin|acos|atan|pi|[A-Za-z])(?![A-Za-z]))*"
)
_POWER = re.compile(r"(\))?\s*\*\*")
_EXPONENT = re.compile(
    r"\s*(?:(?P<bare>[0-9]{1,3}(?![0-9]))|[A-Za-z](?![A-Za-z])"
    r"|\(\s*-?\s*(?:(?P<inner>[0-9]{1,3})(?:/[0-9]{1,3})?|[A-Za-z])\s*\))(?!\s*\*\*)"
)


def may_be_scored(dataset: str, answer: str) -> bool:
    """Whether a dataset's own `score_answer` can be given this answer without danger."""
    if dataset in LISTS:
        return len(answer) <= _MAX_LIST and _LIST.fullmatch(answer) is not None
    if dataset in ARITHMETIC:
        return len(answer) <= _MAX_EXPRESSION and _ARITHMETIC.fullmatch(answer) is not None
    if dataset in ALGEBRA:
        shaped = len(answer) <= _MAX_EXPRESSION and _ALGEBRA.fullmatch(answer) is not None
        return shaped and _powers_are_small(answer)
    return True


def _powers_are_small(answer: str) -> bool:
    """Exponents are numbers of three digits or variables, and none is itself raised to a power.

    Where what is raised ends in a parenthesis, and so may hold powers itself, the exponents
    multiply to little.
    """
    product = 1
    for power in _POWER.finditer(answer):
        exponent = _EXPONENT.match(answer, power.end())
        if exponent is None:
            return False
        if power[1]:
            product *= max(1, int(exponent["bare"] or exponent["inner"] or _MAX_POWER + 1))
    return product <= _MAX_POWER
