"""This computer's clock against the hub's, in words. Pure."""

from __future__ import annotations

import sys

WORTH_SAYING_S = 60.0
"""Less is the way's delay, or does no harm."""

_FIXES = {
    "linux": "Set it: sudo timedatectl set-ntp true",
    "darwin": "Set it: System Settings, General, Date & Time, Set time and date automatically.",
    "win32": "Set it: Settings, Time & language, Date & time, Sync now.",
}


def offset_in_words(seconds: float) -> str:
    """Of so many seconds that the hub is ahead of this machine."""
    amount, unit = next(
        (abs(seconds) / size, unit)
        for size, unit in ((86400, "days"), (3600, "hours"), (60, "minutes"), (0.001, "ms"))
        if abs(seconds) >= size or unit == "ms"
    )
    side = "behind" if seconds > 0 else "ahead of"
    return f"{amount:.1f} {unit} {side} the hub's".replace(".0 ", " ")


def fix_for(system: str = sys.platform) -> str:
    """How to set the clock."""
    return _FIXES.get(system, "Set it to the right time.")


def complaint(offset_s: float) -> str:
    """What to tell the person of a clock that is wrong; empty if it is right enough."""
    if abs(offset_s) < WORTH_SAYING_S:
        return ""
    return (
        f"This computer's clock is {offset_in_words(offset_s)}; the work goes by the hub's. "
        f"{fix_for()}"
    )
