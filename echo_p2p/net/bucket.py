"""How much may be sent or received by when: a token bucket. Pure: the time comes in.

Some traffic waits for the bucket (chunks), some only counts (everything else: it is sent at once,
and what waits makes up for it).

Promise, for a `rate` in bytes a second and if nothing counts but what waits: in any `t` seconds at
most `rate * (t + BURST_S) + quantum` bytes are let through; and while somebody wants to send, and
comes within `BURST_S` of when it may, at least `rate * t - quantum`. A quantum is at most
`rate * QUANTUM_S` (or MIN_QUANTUM), so over 10 s both are within 1 %. What only counts is paid back
in full by what waits.
"""

from __future__ import annotations

from echo_p2p.net import tuning

BURST_S = 0.04
"""How late a task may come for its turn without its turn being lost."""
QUANTUM_S = 0.02
MIN_QUANTUM, MAX_QUANTUM = 1024, 65_507
"""The largest fills one Noise packet, as one Yamux frame."""


def quantum_of(rate: int | None) -> int:
    """How many bytes to send in one go: few enough that nothing has to wait long behind them."""
    if rate is None:
        return MAX_QUANTUM
    return max(MIN_QUANTUM, min(MAX_QUANTUM, int(rate * QUANTUM_S)))


def next_batch(batch: int, *, slow: bool) -> int:
    """How many bytes of chunks to give to a socket next, where there is no limit.

    Args:
        batch: how many it was given last.
        slow: they took longer than `BATCH_S`, and it was the link that they waited for.
    """
    if slow:
        return max(tuning.LEAST_BATCH_BYTES, batch // 2)
    return min(tuning.MOST_BATCH_BYTES, batch * 2)


class Bucket:
    """`rate` in bytes a second, positive; `now` on any clock that does not go back."""

    def __init__(self, rate: float, now: float) -> None:
        self._rate = rate
        self._level = 0.0  # bytes that may be let through now; below zero, owed
        self._at = now

    def change(self, rate: float, now: float) -> None:
        """Another rate from now on; what is owed stays owed."""
        self._fill(now)
        self._rate = rate
        self._level = min(self._level, rate * BURST_S)

    def delay(self, now: float) -> float:
        """Seconds until what waits may go; 0 if it may now."""
        self._fill(now)
        # less than a byte is owed by rounding alone, and no clock could tell when it is paid
        return 0.0 if self._level > -1 else -self._level / self._rate

    def spend(self, size: float, now: float) -> None:
        """Count `size` bytes, whether they waited or not. Less than zero gives back."""
        self._fill(now)
        self._level = min(self._level - size, self._rate * BURST_S)

    def _fill(self, now: float) -> None:
        gained = self._rate * max(0.0, now - self._at)
        self._level = min(self._level + gained, self._rate * BURST_S)
        self._at = max(now, self._at)
