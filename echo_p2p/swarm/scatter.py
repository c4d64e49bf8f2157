"""What the hub sends to whom when it may choose. Pure; `planner` says why.

Promise: to a node that does not insist, a chunk goes only if no other connected node was given it;
to one that insists, something always goes. Nothing is remembered of nodes that have left.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from echo_p2p.artifact import bitmap

RECENT = 8


class Scatter:
    """The hub's memory of one artifact: which connected node was given which chunks."""

    def __init__(self) -> None:
        self._given: dict[str, int] = {}
        self._recent: dict[str, list[int]] = {}
        self._turn = 0

    def pick(self, asker: str, lacks: int, *, insist: bool, present: Collection[str]) -> int | None:
        """The chunk to send to `asker`, or None for `Elsewhere`; it counts as given from now on.

        Args:
            lacks: what the asker says it lacks.
            present: the peers connected now; what others were given counts no more.
        """
        for gone in [peer for peer in self._given if peer not in present]:
            del self._given[gone], self._recent[gone]
        recent = self._recent.setdefault(asker, [])
        # What it lacks it was not given, or lost; but the last picks may be on their way still.
        on_the_way = sum(1 << index for index in recent)
        self._given[asker] = self._given.get(asker, 0) & (~lacks | on_the_way)
        index = pick_chunk(lacks, list(self._given.values()), insist=insist, start=self._turn)
        if index is not None:
            self._turn = index + 1
            self._given[asker] |= 1 << index
            if index in recent:
                recent.remove(index)
            recent.append(index)
            del recent[:-RECENT]
        return index


def pick_chunk(lacks: int, given: Sequence[int], *, insist: bool, start: int) -> int | None:
    """A chunk of `lacks` that nobody was given; insisting, else one given to fewest.

    Args:
        given: for each node, the chunks that it was given.
        start: where to begin looking, so that one insisting node after the other gets another.
    """
    fresh, *others = bitmap.by_rarity(lacks, list(given))
    for level in [fresh, *others] if insist else [fresh]:
        if level:
            return bitmap.near(level, start)
    return None
