"""The controller's view of a live run: from what a hub sees to who may have work. Pure.

A hub sees when leases went out and came back, how many groups a node asks for at a time, who is in
session, how long versions and updates took. Here that becomes what `Activation` is told, and its
decision becomes an answer to `allows`. Times are arguments, in Unix seconds.

Promises:

- a node that nothing is known of may work, and so may all before the learner's second update;
- what a node was given counts: one that is handed little is not taken for a slow one
  (`estimators.Rate`), and time in which it held nothing counts for nothing;
- in the modes `advise` and `off`, all may work.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from echo_hub.planner.activation import Activation, Decision, Place, Rules
from echo_hub.planner.system import Node, Run

ASKED_S = 60.0
"""A node that asked for work so lately is there, watching or not."""
_ASKS = 16
_JUDGED = 32
_MOST_NODES = 20_000

Mode = Literal["advise", "on", "off"]


@dataclass
class _Load:
    """What was seen of a node's work. `asks`: groups it had room for, the last few times."""

    asks: deque[int] = field(default_factory=lambda: deque(maxlen=_ASKS))
    asked_at: float = float("-inf")
    last: float = float("-inf")
    """When it handed in its newest group."""


@dataclass(frozen=True)
class Standby:
    """Why a node gets no work. `until`: Unix seconds at which its turn may be expected."""

    sentence: str
    until: float | None


@dataclass(frozen=True)
class Looked:
    """What a look decided, and whom it sent to work or to standby since the last one."""

    decision: Decision
    to_work: frozenset[bytes]
    to_standby: frozenset[bytes]


class Roster:
    """Who works in a run.

    Args:
        run: as configured; its times are replaced by measured ones.
        most: groups that a node may hold at a time.
        limit: groups that a node can answer in time (`Paces.limit`).
    """

    def __init__(
        self, run: Run, rules: Rules, *, mode: Mode, most: int, limit: Callable[[bytes], int]
    ) -> None:
        self.mode = mode
        self._activation = Activation(run, (), rules)
        self._most, self._limit = most, limit
        self._loads: OrderedDict[bytes, _Load] = OrderedDict()
        self._there: set[bytes] = set()
        self._touched: set[bytes] = set()
        self._places: list[Place] | None = None
        self._met: OrderedDict[bytes, tuple[int, float, float]] = OrderedDict()
        self._active: frozenset[bytes] | None = None
        self._decision: Decision | None = None
        self._updates_s = 0.0
        self._judged: deque[tuple[int, int]] = deque(maxlen=_JUDGED)

    # --- what happens -------------------------------------------------------------------------

    def asked(self, node: bytes, groups: int, now: float) -> None:
        """A node asked for so many groups, which is at most what it can work on at a time."""
        load = self._load(node)
        load.asks.append(max(1, min(groups, self._most)))
        self._touched.add(node)
        load.asked_at = now

    def answered(
        self, node: bytes, *, rollouts: int, held: int, issued_at: float, now: float
    ) -> None:
        """A node answered a lease; with it, it held so many."""
        load = self._load(node)
        busy_s = now - max(issued_at, load.last)
        load.last = now
        self._activation.answered(name_of(node), rollouts, max(0.0, busy_s), held / self.room(node))

    def fetched(self, node: bytes, seconds: float) -> None:
        """A node has a version, so long after it was announced."""
        self._activation.fetched(name_of(node), seconds, 0.0)

    def trained(self, busy_s: float, period_s: float) -> None:
        """The learner was busy for so long with an update, and so much passed since the last."""
        self._updates_s += period_s
        self._activation.trained(busy_s, self._updates_s)

    def repriced(self) -> None:
        """Prices may have changed."""
        self._touched |= self._there

    def judged(self, accepted: int, rejected: int) -> None:
        """Counts of rollouts so far; what was added lately is the share that is rejected."""
        self._judged.append((accepted, rejected))
        good = max(0, accepted - self._judged[0][0])
        bad = max(0, rejected - self._judged[0][1])
        if good + bad:
            self._activation.failed(bad / (good + bad))

    # --- what to do ---------------------------------------------------------------------------

    def look(
        self, here: Iterable[bytes], traits: Callable[[bytes], tuple[float, float]], now: float
    ) -> Looked | None:
        """Decide again; None while too little is known.

        Args:
            here: who is in session and may be given work.
            traits: a node's price, in money an hour, and its watts; 0 where they are not known.
        """
        there = set(here)
        there |= {key for key, load in self._loads.items() if now - load.asked_at < ASKED_S}
        for node in (there - self._there) | (self._touched & there):
            self._meet(node, traits(node))
        self._touched.clear()
        for node in there - self._there:
            self._activation.joined(name_of(node), now)
        for node in self._there - there:
            self._activation.left(name_of(node), now)
        self._there = there
        if self.mode == "off" or not self._updates_s:
            return None
        self._places = None
        decision = self._decision = self._activation.decision(now)
        before = there if self._active is None else self._active
        self._active = frozenset(map(bytes.fromhex, decision.active))
        standby = there - self._active
        return Looked(decision, self._active - before, frozenset(standby & before))

    def _meet(self, node: bytes, traits: tuple[float, float]) -> None:
        known = (self.room(node), *traits)
        if self._met.get(node) == known:
            return
        groups, price, watts = known
        made = Node(name_of(node), 0.0, groups=groups, price=price, watts=watts)
        self._activation.meet(made)
        self._met[node] = known
        while len(self._met) > _MOST_NODES:
            self._met.popitem(last=False)

    def allows(self, node: bytes) -> bool:
        """May a node have work now?"""
        if self.mode != "on" or self._active is None or node not in self._there:
            return True
        return node in self._active

    def standby(self, node: bytes, now: float) -> Standby | None:
        """Why a node has none; None if it may have some."""
        if self.allows(node):
            return None
        place = self._activation.place(name_of(node))
        if place is None:
            return None
        if not place.in_time:
            return Standby(
                "a group takes this machine longer than the run can wait for; it is tried again "
                "from time to time",
                None,
            )
        words = "others generate what the learner can take; this machine takes over when they leave"
        if place.turn_s is None:
            return Standby(words, None)
        return Standby(f"{words}, or when its turn comes", now + place.turn_s)

    def room(self, node: bytes) -> int:
        """Groups that a node works on at a time, as far as is known."""
        load = self._loads.get(node)
        asked = max(load.asks) if load is not None and load.asks else 1
        return max(1, min(asked, self._limit(node)))

    @property
    def on_standby(self) -> int:
        """Nodes that may have no work now."""
        if self.mode != "on" or self._active is None:
            return 0
        return len(self._there - self._active)

    @property
    def decision(self) -> Decision | None:
        """The last one."""
        return self._decision

    @property
    def idle(self) -> float:
        """Share of the last updates' time that the learner waited."""
        return self._activation.idle

    def places(self) -> list[Place]:
        """The nodes that are there, as the controller sees them."""
        if self._places is None:
            self._places = self._activation.places() if self._decision is not None else []
        return self._places

    @property
    def idle_rented(self) -> list[str]:
        """Rented nodes on standby, by the controller's keys."""
        return self._activation.idle_rented()

    def _load(self, node: bytes) -> _Load:
        load = self._loads.setdefault(node, _Load())
        self._loads.move_to_end(node)
        while len(self._loads) > _MOST_NODES:
            self._loads.popitem(last=False)
        return load


def name_of(node: bytes) -> str:
    """The key of a node as the controller's."""
    return node.hex()


def watts_of(engine: str, table: Mapping[str, float]) -> float:
    """Power of the card that a node's own words name, by lower-case name; 0 if none is known."""
    said = engine.lower()
    named = max((name for name in table if name in said), key=len, default=None)
    return 0.0 if named is None else table[named]
