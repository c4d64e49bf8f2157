"""What the hub sends to whom when it may choose, and how much in all. Pure; `planner` says why.

Three kinds of sending, in this order of rank:

- FRESH: a chunk that no connected node that uploads was given. It goes to nodes that upload, so
  that the hub's uplink carries each chunk about once and what it carried is passed on; first to
  nodes that can pass it on within `SOON_S`, the others (FRESH_LATER) get what those leave.
- SPARE: a further copy, because the asker's peers are busier than the hub, or because nobody the
  asker knows has the chunk `STALE_S` after it was given away. Only within the budget.
- INSIST: a node to which nobody gives anything. It always gets something, within its allowance.

Bounds. Let F be the number of chunks. FRESH and SPARE together stay within `BUDGET` F sendings,
whatever nodes do: the first sending of each chunk is free, every other one is counted against the
budget. One key gets at most `F + SLACK` chunks beyond first sendings, and then one more each
`TRICKLE_S`. So the hub sends at most

    BUDGET F + (number of keys that insist) * (F + SLACK + time / TRICKLE_S)

and less than three copies in a swarm in which nobody has to insist. An insisting node is never
refused for ever.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from echo_p2p.artifact import bitmap

FRESH, FRESH_LATER, SPARE, INSIST = range(4)
SOON_S = 1.0
BUDGET = 2.8
SLACK = 8
TRICKLE_S = 10.0
STALE_S = 2.0
RECENT = 8
MAX_TAKERS = 4096  # keys whose allowance is remembered


@dataclass
class _Given:
    """What a connected node was given."""

    bits: int = 0
    uploads: bool = True
    recent: list[int] = field(default_factory=list)


class Scatter:
    """The hub's memory of one artifact of `count` chunks."""

    def __init__(self, count: int) -> None:
        self.sent = 0
        self._count = count
        self._given: dict[str, _Given] = {}
        self._copies = [0] * count  # given to connected nodes that upload
        self._given_at = [float("-inf")] * count
        self._fresh = bitmap.full(count)
        self._never = bitmap.full(count)
        self._again = 0  # sendings that were not the first of their chunk
        self._taken: dict[str, tuple[float, float]] = {}  # allowance used, and when
        self._turn = 0

    def keep_only(self, present: frozenset[str]) -> None:
        """Forget what nodes that have left were given."""
        for gone in self._given.keys() - present:
            self._forget(gone, self._given.pop(gone).bits)

    def rank(
        self, asker: str, lacks: int, *, insist: bool, backlog_s: float | None, now: float
    ) -> int | None:
        """How urgent a request to pick among `lacks` is; None for `Elsewhere`.

        Args:
            backlog_s: how long a chunk would wait at the asker to be passed on; None: for ever.
        """
        self._hear(asker, lacks, backlog_s is not None)
        if self._fresh_for(asker, lacks, now):
            return FRESH if backlog_s is not None and backlog_s < SOON_S else FRESH_LATER
        if self._stale(lacks, now) and self._may_spare(asker, now):
            return SPARE
        return INSIST if insist and lacks and self._allows(asker, now) else None

    def pick(self, asker: str, lacks: int, *, insist: bool, now: float) -> int | None:
        """The chunk to send now, which counts as given; None for `Elsewhere`."""
        if fresh := self._fresh_for(asker, lacks, now):
            return self._give(asker, bitmap.near(fresh, self._turn), now)
        stale = self._stale(lacks, now)
        if stale and self._may_spare(asker, now):
            return self._give(asker, self._least_copied(stale), now)
        if insist and lacks and self._allows(asker, now):
            return self._give(asker, self._least_copied(lacks), now)
        return None

    def may_spare(self, asker: str, index: int, *, now: float) -> bool:
        """Whether a chunk asked for by name may be sent as a further copy."""
        return bool(self._never >> index & 1) or self._may_spare(asker, now)

    def spare(self, asker: str, index: int, *, now: float) -> bool:
        """Send a chunk that was asked for by name; False for `Elsewhere`."""
        if not self.may_spare(asker, index, now=now):
            return False
        self._give(asker, index, now)
        return True

    # --- inside ---------------------------------------------------------------------------------

    def _hear(self, asker: str, lacks: int, uploads: bool) -> None:
        given = self._given.setdefault(asker, _Given())
        if given.uploads and not uploads:
            self._forget(asker, given.bits)
        given.uploads = uploads
        # What it lacks it was not given, or lost; but the last picks may be on their way still.
        lost = given.bits & lacks
        for index in given.recent:
            lost &= ~(1 << index)
        if lost:
            given.bits &= ~lost
            if uploads:
                self._forget(asker, lost)

    def _forget(self, asker: str, bits: int) -> None:
        for index in bitmap.indices(bits):
            self._copies[index] = max(0, self._copies[index] - 1)
            if not self._copies[index]:
                self._fresh |= 1 << index

    def _fresh_for(self, asker: str, lacks: int, now: float) -> int:
        given = self._given.get(asker)
        passes_on = given is None or given.uploads
        if not passes_on and any(other.uploads for other in self._given.values()):
            return 0
        fresh = lacks & self._fresh
        if fresh & ~self._never and not self._may_spare(asker, now):
            fresh &= self._never
        return fresh

    def _stale(self, lacks: int, now: float) -> int:
        stale = 0
        for index in bitmap.indices(lacks):
            if now - self._given_at[index] >= STALE_S:
                stale |= 1 << index
        return stale

    def _least_copied(self, bits: int) -> int:
        order = sorted(
            bitmap.indices(bits),
            key=lambda i: (self._copies[i], self._given_at[i], (i - self._turn) % self._count),
        )
        return order[0]

    def _may_spare(self, asker: str, now: float) -> bool:
        return self._again < (BUDGET - 1) * self._count and self._allows(asker, now)

    def _allows(self, asker: str, now: float) -> bool:
        return self._used(asker, now) < self._count + SLACK

    def _used(self, asker: str, now: float) -> float:
        used, at = self._taken.get(asker, (0.0, now))
        return max(0.0, used - max(0.0, now - at) / TRICKLE_S)

    def _give(self, asker: str, index: int, now: float) -> int:
        bit = 1 << index
        self.sent += 1
        if self._never & bit:
            self._never &= ~bit
        else:
            self._again += 1
            used = self._used(asker, now) + 1
            self._taken.pop(asker, None)  # the latest to take are last
            self._taken[asker] = used, now
            if len(self._taken) > MAX_TAKERS:
                del self._taken[next(iter(self._taken))]
        given = self._given.setdefault(asker, _Given())
        if given.uploads and not given.bits & bit:
            self._copies[index] += 1
            self._fresh &= ~bit
        given.bits |= bit
        if index in given.recent:
            given.recent.remove(index)
        given.recent.append(index)
        del given.recent[:-RECENT]
        self._given_at[index] = now
        self._turn = (index + 1) % self._count
        return index
