"""Resting between steps, so that an engine computes for only a part of the time. Pure."""

from __future__ import annotations

LONGEST_REST_S = 5.0


class Duty:
    """`percent` of the time is work. What one rest could not make up for is owed to the next."""

    def __init__(self) -> None:
        self._percent = 100
        self._owed_s = 0.0

    def set(self, percent: int) -> None:
        """Another share of the time, from now on."""
        self._percent = percent
        self._owed_s = 0.0

    def rest_s(self, worked_s: float) -> float:
        """How long to rest after a step that took so long; never so long that commands wait for
        more than a few seconds."""
        self._owed_s += worked_s * (100 - self._percent) / self._percent
        rest = min(self._owed_s, LONGEST_REST_S)
        self._owed_s -= rest
        return rest
