"""What a check found, and what follows from it for the whole. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

Severity = Literal["ok", "note", "warning", "error"]
ORDER: tuple[Severity, ...] = ("ok", "note", "warning", "error")
EXIT_CODES: dict[Severity, int] = {"ok": 0, "note": 0, "warning": 20, "error": 21}
"""What the command ends with; docs/volunteer.md lists them."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing found. `note` is worth knowing, `warning` may hinder, `error` keeps from joining.

    A warning or an error has a `fix`: what to do, in words for people.
    """

    check: str
    severity: Severity
    said: str
    fix: str = ""

    def __post_init__(self) -> None:
        assert self.fix or self.severity in ("ok", "note"), f"{self.said} has no fix"


def worst(findings: Iterable[Finding]) -> Severity:
    """The worst severity among findings; "ok" of none."""
    return max((finding.severity for finding in findings), key=ORDER.index, default="ok")
