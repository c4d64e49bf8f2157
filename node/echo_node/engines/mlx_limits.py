"""How much memory MLX may use, how many rows fit into it, and how long to rest. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass

_SHARE = 0.85  # of what Apple recommends, or of all memory less a quarter
_CACHE_SHARE = 8  # of the limit, this part may be kept as free buffers
_ACTIVATION_SHARE = 8  # of the free memory, this part is for what is not keys and values
_CACHE_STEP = 256  # tokens by which mlx-lm's caches grow
_LONGEST_REST_S = 0.5


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes: of all arrays, of free buffers kept, of what stays resident (None: leave it)."""

    limit: int
    cache: int
    wired: int | None


def memory_plan(
    wanted: int | None, *, recommended: int | None, total: int | None
) -> MemoryPlan | None:
    """Limits for a machine; None where nothing is known and nothing was asked for.

    Args:
        wanted: the volunteer's limit, in bytes.
        recommended: the largest working set that the chip is recommended to have.
        total: the machine's memory.
    """
    most = recommended or (total and total * 3 // 4)
    if wanted is None:
        if most is None:
            return None
        limit = int(most * _SHARE)
    else:
        limit = wanted if most is None else min(wanted, most)
    wired = None if recommended is None else min(limit, recommended)
    return MemoryPlan(limit, limit // _CACHE_SHARE, wired)


def rows_that_fit(free: int, longest: int, token_bytes: int) -> int:
    """Rows whose keys and values fit into `free` bytes at their full length; at least one.

    Every row takes as much as the longest, since they are kept in one array.
    """
    tokens = -(-longest // _CACHE_STEP) * _CACHE_STEP
    room = free - free // _ACTIVATION_SHARE
    return max(1, room // (tokens * token_bytes))


def rest_s(worked_s: float, duty: float) -> float:
    """How long to rest after work, so that `duty` is the share of the time worked."""
    return worked_s * (1.0 / duty - 1.0) if 0.0 < duty < 1.0 else 0.0


class Pace:
    """Rest that is owed, in pieces so short that nobody takes a resting engine for a hung one."""

    def __init__(self) -> None:
        self._owed_s = 0.0

    def rest_s(self, worked_s: float, duty: float) -> float:
        """How long to rest now, after this work; the rest of it is owed."""
        self._owed_s += rest_s(worked_s, duty)
        now = min(self._owed_s, _LONGEST_REST_S)
        self._owed_s -= now
        return now
