"""Rates over the last few readings of a counter. Pure."""

from __future__ import annotations

from collections import deque

_READINGS = 6


class Meter:
    """Readings of two totals, rollouts and tokens, at increasing times."""

    def __init__(self, start: float) -> None:
        self._start = start
        self._readings: deque[tuple[float, int, int]] = deque([(start, 0, 0)], maxlen=_READINGS)

    def rates(self, now: float, rollouts: int, tokens: int) -> tuple[float, float]:
        """Take a reading; rollouts and tokens per second since the oldest one kept."""
        then, rollouts_then, tokens_then = self._readings[0]
        self._readings.append((now, rollouts, tokens))
        seconds = max(now - then, 1e-9)
        return (rollouts - rollouts_then) / seconds, (tokens - tokens_then) / seconds

    def elapsed(self, now: float) -> float:
        return now - self._start
