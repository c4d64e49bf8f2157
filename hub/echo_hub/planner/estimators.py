"""What is measured while a run goes on, made robust. Pure: times and samples are arguments.

Promises, for `Level` and `Rate`:

- one sample, however wrong (a thousandfold, negative, not a number), does not move the estimate
  beyond its neighbours in order: estimates are medians;
- a lasting change is followed after half a window of samples;
- a clock that steps, back or far ahead, makes no sample: `Elapsed` gives 0 for it.
"""

from __future__ import annotations

import math
import statistics
from collections import deque


class Level:
    """The level of a positive quantity (T_train, T_bcast, a price): the median of the last few."""

    def __init__(self, window: int = 5) -> None:
        self._samples: deque[float] = deque(maxlen=window)
        self.value: float | None = None
        """The estimate; None before the first sample."""

    def add(self, sample: float) -> None:
        """One more measurement; what is not a positive, finite number is passed over."""
        if math.isfinite(sample) and sample > 0:
            self._samples.append(sample)
            self.value = statistics.median(self._samples)


class Elapsed:
    """Seconds between calls, by a clock that may step.

    Args:
        most: a longer time than this is a step of the clock (or a sleep of the machine).
    """

    def __init__(self, most: float = 3600.0) -> None:
        self._most = most
        self._last: float | None = None

    def since(self, now: float) -> float:
        """Seconds since the last call; 0 at the first, and if the clock stepped."""
        last, self._last = self._last, now
        if last is None or not 0 <= now - last <= self._most:
            return 0.0
        return now - last


class Rate:
    """Work a second of a node at full load, from the times in which it had something to do.

    Work and busy time are summed into blocks, since answers come in bursts; the estimate is the
    median of the last blocks' rates. A node that has only a share of the work it could hold may do
    the rest in the same time (a card that answers many prompts at once) or in as much again (a
    processor that is busy with one): its rate at full load is between what was seen and that over
    the share. A block moves the estimate only as far as this asks for, so that a node that is given
    little is not taken for a slow one, and full load, when it comes, decides.

    Args:
        block_s: busy seconds of a block, at least; a block also holds at least one piece of work.
        blocks: how many are remembered.
        longest_s: a single busy time longer than this is passed over with its work.
    """

    def __init__(
        self, *, block_s: float = 20.0, blocks: int = 5, longest_s: float = 3600.0
    ) -> None:
        self._block_s, self._longest_s = block_s, longest_s
        self._level = Level(blocks)
        self._work = self._busy = self._loaded = 0.0

    def add(self, work: float, busy_s: float, share: float = 1.0) -> None:
        """So much work was done in so much busy time (0 if it came together with other work), in
        which the node had this share of what it can work on at a time."""
        if not (math.isfinite(work) and work >= 0 and 0 <= busy_s <= self._longest_s):
            return
        if busy_s and self._busy >= self._block_s and self._work > 0:  # a burst is not divided
            self._level.add(self._sample())
            self._work = self._busy = self._loaded = 0.0
        self._work += work
        self._busy += busy_s
        self._loaded += busy_s * (min(1.0, share) if share > 0 else 1.0)

    def _sample(self) -> float:
        least = self._work / self._busy
        most = least * self._busy / self._loaded
        known = self._level.value
        return math.sqrt(least * most) if known is None else min(max(known, least), most)

    @property
    def value(self) -> float | None:
        """Work a second; None before the first block is full."""
        return self._level.value
