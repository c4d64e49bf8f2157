"""Clocks of a computer that sleeps: trio's, and `time.monotonic`, stand still meanwhile on Linux.

`awake_or_asleep` never goes back and counts sleep too; the wall clock (`time.time`) counts sleep,
and jumps when it is set. What is promised to a person ("until 19:00") is kept by the wall; how long
a computer slept is the difference of the other two.
"""

from __future__ import annotations

import time

SLEPT_S = 5.0

_CLOCK = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))


def awake_or_asleep() -> float:
    """Seconds since some moment, those of sleep included."""
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)


class SleepWatch:
    """Notices that the computer, or this process alone, stood still for a while."""

    def __init__(self, now: float, every_s: float) -> None:
        self._last = now
        self._every_s = every_s

    def slept_s(self, now: float) -> float:
        """Called about every `every_s`, with `awake_or_asleep`: seconds missed since, or 0."""
        missed = now - self._last - self._every_s
        self._last = now
        return missed if missed >= SLEPT_S else 0.0
