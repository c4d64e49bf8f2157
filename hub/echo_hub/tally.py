"""Counts for people: what became of the rollouts of each node, and how fast each one is.

Pure. Every rollout that was handed in is counted once: under `accepted`, or under the reason code
it was rejected or dropped with. The ledger keeps the same counts; this is the copy in memory, with
recent rates added.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice

from echo_hub.rollouts.checks import Code

RATE_WINDOW_S = 30.0
WORKING_S = 120.0


@dataclass(frozen=True)
class NodeFacts:
    """One node: newest version it has, accepted rollouts a second of late, and its counts.

    `valid` are its consecutive valid groups, `audits` the probability of its next audit; `banned`
    says why it is, if it is.
    """

    key: bytes
    version: int | None
    rate: float
    accepted: int
    rejected: int
    last_seen: float | None
    valid: float = 0.0
    audits: float = 1.0
    banned: str | None = None


@dataclass(frozen=True)
class FrontSnapshot:
    """Where the front stands, for people.

    Rollouts by what became of them; groups `running` at nodes, `checking`, `buffered`, and
    `training` in the learner's hands; `evaluating` maps versions to prompts answered so far.
    """

    version: int
    published: int | None
    rollouts_accepted: int
    rollouts_rejected: dict[str, int]
    lag_histogram: dict[int, int]
    running: int
    checking: int
    buffered: int
    training: int
    waiting_nodes: int
    audited: int
    not_audited: int
    evaluating: dict[int, int]
    nodes: tuple[NodeFacts, ...]
    known: int = 0
    """Nodes that were ever seen."""
    working: int = 0
    """Nodes that asked for work within the last `WORKING_S`."""
    auditing: int = 0
    """Groups that have their reward and wait for their audit."""
    banned: frozenset[bytes] = frozenset()
    """Keys of all banned nodes."""


@dataclass
class _Node:
    rollouts: Counter[str] = field(default_factory=Counter)
    recent: deque[tuple[float, int]] = field(default_factory=deque)
    version: int | None = None
    first_seen: float | None = None
    last_seen: float | None = None


class Tally:
    """Counts of rollouts, in all and by node."""

    def __init__(self, verdicts: Iterable[tuple[bytes, str, int, int]] = ()) -> None:
        self._nodes: dict[bytes, _Node] = {}
        self._lately: OrderedDict[bytes, float] = OrderedDict()
        self._changed: dict[bytes, None] = {}
        self.rollouts: Counter[str] = Counter()
        for node, code, _, rollouts in verdicts:
            self._count(node, code, rollouts)
        self._changed.clear()  # what was, is not news

    def seen(self, node: bytes, version: int, now: float) -> None:
        """A node asked for leases, with its newest version."""
        facts = self._nodes.setdefault(node, _Node())
        facts.version = version
        self._saw(facts, now)
        self._changed[node] = None
        self._lately[node] = now
        self._lately.move_to_end(node)

    def accept(self, node: bytes, rollouts: int, now: float) -> None:
        """A group passed the cheap checks."""
        facts = self._count(node, Code.ACCEPTED, rollouts)
        self._saw(facts, now)
        facts.recent.append((now, rollouts))
        self._forget_old(facts, now)

    def reject(self, node: bytes, code: str, rollouts: int) -> None:
        """A submission was rejected at the door."""
        self._count(node, code, rollouts)

    def drop(self, node: bytes, code: str, rollouts: int) -> None:
        """A group that was accepted failed a later check."""
        self._count(node, Code.ACCEPTED, -rollouts)
        self._count(node, code, rollouts)

    @property
    def accepted(self) -> int:
        """Rollouts that count, in all."""
        return self.rollouts[Code.ACCEPTED]

    @property
    def rejected(self) -> dict[str, int]:
        """Rollouts that do not, by reason code."""
        return {
            str(code): count
            for code, count in sorted(self.rollouts.items())
            if code != Code.ACCEPTED and count
        }

    def nodes(self, now: float) -> tuple[NodeFacts, ...]:
        """Facts of every node, the busiest first."""
        facts = [self._facts(key, node, now) for key, node in self._nodes.items()]
        return tuple(sorted(facts, key=lambda node: -node.accepted))

    def one(self, node: bytes, now: float) -> NodeFacts | None:
        """Facts of one node; None if it has not been seen."""
        found = self._nodes.get(node)
        return None if found is None else self._facts(node, found, now)

    def live(self, node: bytes, now: float) -> tuple[int | None, float] | None:
        """A node's version and its rate in rollouts a second; None if it has not been seen."""
        found = self._nodes.get(node)
        return None if found is None else (found.version, self._rate(found, now))

    def rates(self, now: float) -> list[float]:
        """Rollouts a second of each node that gives any."""
        return [rate for node in self._nodes.values() if (rate := self._rate(node, now)) > 0]

    def working(self, now: float) -> int:
        """Nodes that asked for work of late."""
        while self._lately and next(iter(self._lately.values())) < now - WORKING_S:
            self._lately.popitem(last=False)
        return len(self._lately)

    def __len__(self) -> int:
        return len(self._nodes)

    def take_changed(self, most: int) -> list[bytes]:
        """Some of the nodes that did something since they were last taken, the longest first."""
        taken = list(islice(self._changed, most))
        for node in taken:
            del self._changed[node]
        return taken

    def keys(self) -> list[bytes]:
        """All nodes that have been seen."""
        return list(self._nodes)

    def _count(self, node: bytes, code: str, rollouts: int) -> _Node:
        facts = self._nodes.setdefault(node, _Node())
        self._changed[node] = None
        facts.rollouts[code] += rollouts
        self.rollouts[code] += rollouts
        return facts

    def _facts(self, key: bytes, node: _Node, now: float) -> NodeFacts:
        accepted = node.rollouts[Code.ACCEPTED]
        return NodeFacts(
            key=key,
            version=node.version,
            rate=self._rate(node, now),
            accepted=accepted,
            rejected=node.rollouts.total() - accepted,
            last_seen=node.last_seen,
        )

    def _rate(self, node: _Node, now: float) -> float:
        self._forget_old(node, now)
        if not node.recent:
            return 0.0
        seen_for = now - node.first_seen if node.first_seen is not None else 0.0
        return sum(count for _, count in node.recent) / min(RATE_WINDOW_S, max(1.0, seen_for))

    @staticmethod
    def _saw(node: _Node, now: float) -> None:
        node.first_seen = now if node.first_seen is None else node.first_seen
        node.last_seen = now

    @staticmethod
    def _forget_old(node: _Node, now: float) -> None:
        while node.recent and node.recent[0][0] < now - RATE_WINDOW_S:
            node.recent.popleft()
