"""Who says of whom that it sent bad chunks, and when that is believed. Pure.

A bad chunk proves nothing to others: its receiver might have made it up. So a report is a claim,
and

- one node alone, however often it reports, has no effect but a line for the operator;
- when `QUORUM` nodes with standing (a valid group since the last invalid one) accuse a node, the
  hub introduces it to nobody any more. It may go on fetching and working; only an operator bans;
- a node has `MOST_ACCUSED` accusations, its first ones. So liars who shut out honest nodes need as
  many keys with standing as there are nodes they shut out.

Memory is bounded by `MOST_REPORTS`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

QUORUM = 3
MOST_ACCUSED = QUORUM
MOST_REPORTS = 20_000


class Accusations:
    """All accusations of a run, as pairs of the accused key and the accusing one."""

    def __init__(self, known: Iterable[tuple[bytes, bytes]] = ()) -> None:
        self._accusers: dict[bytes, set[bytes]] = {}
        self._made: Counter[bytes] = Counter()
        for accused, accuser in known:
            self.add(accused, accuser)

    def add(self, accused: bytes, accuser: bytes) -> bool:
        """A node reports another; False if that adds nothing to what is known."""
        accusers = self._accusers.get(accused, set())
        if accuser == accused or accuser in accusers or self._made[accuser] >= MOST_ACCUSED:
            return False
        if self._made.total() >= MOST_REPORTS:
            return False
        self._accusers.setdefault(accused, set()).add(accuser)
        self._made[accuser] += 1
        return True

    def believed(self, accused: bytes, has_standing: Callable[[bytes], bool]) -> bool:
        """Do enough nodes accuse this one?"""
        accusers = self._accusers.get(accused, set())
        return len(accusers) >= QUORUM and sum(map(has_standing, accusers)) >= QUORUM
