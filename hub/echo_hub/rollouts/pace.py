"""How fast each node answers, and so how many leases it may hold. Pure.

A node may hold as many as it can be expected to answer in half of a lease's time, so that a slow
or a dead one keeps little from the others. Its pace is the mean time a group took over its last
answers; time in which it held no lease does not count.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field

_ANSWERS = 16
_MOST_NODES = 20_000


@dataclass
class _Pace:
    last: float = float("-inf")
    intervals: deque[float] = field(default_factory=lambda: deque(maxlen=_ANSWERS))


class Paces:
    """The pace of each node that answered lately.

    Args:
        lease_s: how long a lease lasts.
        most: leases for the fastest, and for a node that has not answered yet.
    """

    def __init__(self, *, lease_s: float, most: int) -> None:
        self._lease_s = lease_s
        self._most = most
        self._paces: OrderedDict[bytes, _Pace] = OrderedDict()

    def answered(self, node: bytes, issued_at: float, now: float) -> None:
        """A node answered a lease."""
        pace = self._paces.setdefault(node, _Pace())
        self._paces.move_to_end(node)
        pace.intervals.append(max(0.0, now - max(issued_at, pace.last)))
        pace.last = now
        while len(self._paces) > _MOST_NODES:
            self._paces.popitem(last=False)

    def limit(self, node: bytes) -> int:
        """Most leases a node may hold at a time."""
        pace = self._paces.get(node)
        if pace is None:
            return self._most
        mean = sum(pace.intervals) / len(pace.intervals)
        return min(self._most, max(1, int(self._lease_s / 2 / max(mean, 1e-6))))
