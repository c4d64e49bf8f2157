"""Which nodes work and which are on standby, decided again and again without haste. Pure.

`Activation` is told what happens (who comes and goes, groups finished, downloads, updates) and
answers `decide(now)` with the keys that shall work. Its promises:

- the rates of the active nodes reach what the capacity rule needs, with head-room, whenever those
  of all nodes present do; otherwise all of them work, and `Decision.missing` says what lacks;
- among the sets that do, the cheapest (`cover`), as far as the next two promises allow;
- a node is put on standby only after `dwell_s` at work, and to work only after `dwell_s` on
  standby, unless the rule would fail: so at most one change a node in `dwell_s` when nothing
  happens. A cheaper set is taken only if it saves `saving`, and has for `settle_s`;
- a volunteer who waited `turn_s` takes the place of one who worked that long: none waits for ever;
- a node that could not answer within the staleness bound is not asked at all, but for a new try
  every `turn_s` if it came by `meet`;
- a node of unknown rate (`meet`) works until its rate was measured, and counts for nothing before.

Price. A rented node costs its price. A volunteer costs nothing, but something scarce is spent all
the same, and we count their electricity: it is what a volunteer really pays, it is known from the
card, and it is least where the same rollouts take least time and power. Upload is already limited
by its owner and patience is what turns are for. It orders volunteers; it is on no bill.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from echo_hub.planner.capacity import longest_group_s, rate_needed
from echo_hub.planner.cover import cheapest_set
from echo_hub.planner.estimators import Elapsed, Level, Rate
from echo_hub.planner.system import Node, Run, broadcast_s

ENERGY_PRICE = 0.30
"""Money for a kilowatt-hour, where a volunteer's electricity stands in for a price."""
_UNKNOWN_WATTS = 250.0
_MOST_NODES = 20_000
_MOST_REJECTED = 0.9


def hourly(node: Node) -> float:
    """Money an hour of a node, or, of a volunteer's, what its electricity costs."""
    return node.price or (node.watts or _UNKNOWN_WATTS) / 1000 * ENERGY_PRICE


@dataclass(frozen=True)
class Rules:
    """How unhurried. Shares are of the needed rate or of the money; times are seconds."""

    headroom: float = 0.15
    floor: float = 0.05
    """Head-room below which nodes are added at once."""
    dwell_s: float = 300.0
    settle_s: float = 60.0
    saving: float = 0.05
    turn_s: float = 1800.0
    idle: float = 0.05
    """Measured idle share over which more head-room is kept than the rule asks for."""


@dataclass(frozen=True)
class Decision:
    """Who shall work, and why that is enough or not. Rates in rollouts a second."""

    active: frozenset[str]
    needed: float
    rate: float
    money: float
    """An hour, of the active rented nodes."""
    missing: str
    """Empty, or what to do something about: `rate`, `latency`."""
    on_trial: int = 0
    """Of the active nodes, those whose rate is not known yet."""
    wanted: float = 0.0
    """`needed` with the head-room that is kept now."""


@dataclass(frozen=True)
class Place:
    """What the controller knows of a node that is there. `changed_s` ago it was last switched."""

    node: Node
    active: bool
    on_trial: bool
    speed: float
    in_time: bool
    changed_s: float
    turn_s: float | None
    """Seconds until a volunteer on standby may expect its turn, if nobody leaves."""


@dataclass(eq=False)
class _Member:
    node: Node
    rate: Rate = field(default_factory=Rate)
    present: bool = False
    active: bool = False
    changed: float = -math.inf
    """When it was last switched."""
    met: bool = False
    """Its rate is what is measured, and nothing before."""
    measured: float | None = None
    on_trial: bool = False
    """`met`, and not measured yet."""
    able: bool = False
    """It could answer in time, when that was last looked at."""
    speed: float = 0.0
    """Rollouts a second, as measured, or as it was announced before anything was."""
    cost: float = field(init=False)
    """Money an hour, or what stands for it."""

    def __post_init__(self) -> None:
        self.cost = hourly(self.node)

    def worked(self, rollouts: int, busy_s: float, share: float) -> None:
        """It handed in rollouts."""
        self.rate.add(rollouts, busy_s, share)
        self.measured = self.rate.value
        self.on_trial = self.met and self.measured is None

    def begin_anew(self) -> None:
        """Nothing is known of its rate any more."""
        self.rate, self.measured, self.on_trial = Rate(), None, self.met


class Activation:
    """The controller of one run.

    Args:
        run: the run as configured; what is measured takes the place of its numbers.
        nodes: who may come, with announced rates and prices.
    """

    def __init__(self, run: Run, nodes: Iterable[Node], rules: Rules | None = None) -> None:
        self._run, self._rules = run, rules or Rules()
        self._members = {node.key: _Member(node) for node in nodes}
        self._train, self._transfer = Level(5), Level(9)
        self._elapsed, self._clock = Elapsed(), 0.0
        self._between = Elapsed()
        self._idle: deque[tuple[float, float]] = deque(maxlen=4)
        self._able: list[_Member] = []
        self._turns: dict[str, int] | None = None
        self._extra = 1.0
        self._extra_at = self._cheaper_since = -math.inf

    # --- what happens -------------------------------------------------------------------------

    def meet(self, node: Node) -> None:
        """A node of unknown rate may come; or one that is known has another price or link now."""
        member = self._members.get(node.key)
        if member is None:
            self._members[node.key] = _Member(node, met=True, on_trial=True)
            while len(self._members) > _MOST_NODES:
                gone = next((key for key, one in self._members.items() if not one.present), None)
                if gone is None:
                    break
                del self._members[gone]
        elif member.node != node:
            member.node, member.cost = node, hourly(node)

    def joined(self, key: str, now: float) -> None:
        """A node is there (and on standby)."""
        member = self._members[key]
        member.present, member.active = True, False
        member.changed = -math.inf

    def left(self, key: str, now: float) -> None:
        """A node is gone."""
        self._members[key].present = self._members[key].active = False

    def worked(self, key: str, groups: int, busy_s: float, now: float) -> None:
        """A node finished groups that alone would have kept all of it busy for `busy_s`."""
        self.answered(key, groups * self._run.group_size, busy_s)

    def answered(self, key: str, rollouts: int, busy_s: float, share: float = 1.0) -> None:
        """A node handed in rollouts, `busy_s` of work after it had anything to do or handed in the
        last ones; it had `share` of what it can work on at a time."""
        if key in self._members:
            self._members[key].worked(rollouts, busy_s, share)

    def failed(self, share: float) -> None:
        """This share of what is handed in is rejected, of late."""
        self._run = replace(self._run, rejected=min(_MOST_REJECTED, max(0.0, share)))

    def fetched(self, key: str, seconds: float, now: float) -> None:
        """A node took so long to have a published version."""
        self._transfer.add(seconds)

    def trained(self, seconds: float, now: float) -> None:
        """An update took the learner so long; what else passed since the last one, it waited."""
        self._train.add(seconds)
        between = self._between.since(now)
        if between:
            self._idle.append((max(0.0, between - seconds), between))

    @property
    def idle(self) -> float:
        """Share of the last few updates' time that the learner waited."""
        total = sum(between for _, between in self._idle)
        return sum(waited for waited, _ in self._idle) / total if total else 0.0

    # --- what to do ---------------------------------------------------------------------------

    def decide(self, now: float) -> frozenset[str]:
        """The keys of the nodes that shall work."""
        return self.decision(now).active

    def decision(self, now: float) -> Decision:
        """Look at everything again."""
        self._clock += self._elapsed.since(now)
        run, rules = self._measured(), self._rules
        longest_s = longest_group_s(run, run.broadcast_s or 0.0)
        able = self._able = []
        self._turns = None
        for member in self._members.values():
            if not member.present:
                continue
            in_time = False
            if not member.on_trial:
                speed = member.node.rate if member.measured is None else member.measured
                in_time = speed > 0 and member.node.groups * run.group_size <= speed * longest_s
                member.speed = speed
            member.able = in_time
            waited = not member.active and self._clock - member.changed >= rules.turn_s
            if not in_time and member.met and waited:
                member.begin_anew()
            if member.on_trial:
                if not member.active:
                    self._switch(member, on=True)
            elif in_time:
                able.append(member)
            elif member.active:
                self._switch(member, on=False)
        bare = self._needed(run)
        self._trim()
        needed = bare * (1 + rules.headroom) * self._extra
        active = [member for member in able if member.active]
        if _total(active) < bare * (1 + rules.floor) * self._extra:
            self._add(able, needed)
        else:
            self._save(able, needed)
        self._take_turns(able)
        return self._told(able, bare)

    def places(self) -> list[Place]:
        """Every node that is there, as of the last decision."""
        return [self._place(member) for member in self._members.values() if member.present]

    def place(self, key: str) -> Place | None:
        """One node that is there, as of the last decision."""
        member = self._members.get(key)
        return self._place(member) if member is not None and member.present else None

    def idle_rented(self) -> list[str]:
        """Rented nodes that are there and on standby."""
        return [
            key
            for key, member in self._members.items()
            if member.node.price and member.present and not member.active
        ]

    def _place(self, member: _Member) -> Place:
        rank = self._queue().get(member.node.key)
        return Place(
            node=member.node,
            active=member.active,
            on_trial=member.on_trial,
            speed=0.0 if member.on_trial else member.speed,
            in_time=member.on_trial or member.able,
            changed_s=self._clock - member.changed,
            turn_s=None if rank is None else self._until_turn(member, rank),
        )

    def _queue(self) -> dict[str, int]:
        """Of the volunteers on standby that could work: after how many turns each has its own."""
        if self._turns is None:
            waiting = [m for m in self._able if not m.active and not m.node.price]
            at_work = sum(m.active and not m.node.price for m in self._able)
            waiting.sort(key=lambda member: member.changed)
            self._turns = {m.node.key: n // max(1, at_work) + 1 for n, m in enumerate(waiting)}
        return self._turns

    def _until_turn(self, member: _Member, turns: int) -> float:
        waited = min(self._clock - member.changed, self._rules.turn_s)
        return max(0.0, turns * self._rules.turn_s - waited)

    def _measured(self) -> Run:
        train, transfer = self._train.value, self._transfer.value
        run = self._run if train is None else replace(self._run, train_s=train)
        return run if transfer is None else replace(run, broadcast_s=transfer)

    def _needed(self, run: Run) -> float:
        """Rollouts a second to be generated, before head-room."""
        transfer = run.broadcast_s
        if transfer is None:
            transfer = broadcast_s(run, [m.node for m in self._members.values() if m.present])
        return rate_needed(run, transfer) / (1 - run.rejected)

    def _trim(self) -> None:
        """More head-room while the learner is measured to wait, less again when it never does."""
        rules = self._rules
        if self._clock - self._extra_at < rules.settle_s or len(self._idle) < 2:
            return
        if self.idle > rules.idle:
            self._extra, self._extra_at = min(2.0, self._extra * 1.15), self._clock
        elif self.idle < rules.idle / 5 and self._clock - self._extra_at > 4 * rules.dwell_s:
            self._extra, self._extra_at = max(1.0, self._extra / 1.05), self._clock

    def _add(self, able: list[_Member], needed: float) -> None:
        """Enough of those on standby, the cheapest; all, if that is not enough."""
        standby = [member for member in able if not member.active]
        rested = [m for m in standby if self._clock - m.changed >= self._rules.dwell_s]
        left = needed - _total(member for member in able if member.active)
        for pool in (rested, standby):
            chosen = cheapest_set([m.cost for m in pool], [m.speed for m in pool], left)
            if chosen is not None:
                break
        for index, member in enumerate(standby if chosen is None else pool):
            if chosen is None or index in chosen:
                self._switch(member, on=True)
        self._cheaper_since = math.inf

    def _save(self, able: list[_Member], needed: float) -> None:
        """A cheaper set, if it is enough cheaper and has been for a while."""
        rules = self._rules
        active = [member for member in able if member.active]
        target = cheapest_set([m.cost for m in able], [m.speed for m in able], needed)
        if target is None:
            return
        wanted = {able[index].node.key for index in target}
        price = sum(able[index].cost for index in target)
        if price >= (1 - rules.saving) * sum(member.cost for member in active):
            self._cheaper_since = math.inf
            return
        self._cheaper_since = min(self._cheaper_since, self._clock)
        if self._clock - self._cheaper_since < rules.settle_s:
            return
        free = [m for m in able if self._clock - m.changed >= rules.dwell_s]
        surplus = [m for m in free if m.active and m.node.key not in wanted]
        if not surplus:
            return
        for member in free:
            if not member.active and member.node.key in wanted:
                self._switch(member, on=True)
        rate = _total(member for member in able if member.active)
        for member in sorted(surplus, key=lambda m: -m.cost / m.speed):
            if rate - member.speed >= needed:
                rate -= member.speed
                self._switch(member, on=False)

    def _take_turns(self, able: list[_Member]) -> None:
        """The volunteer who has waited longest for the one who has worked longest."""
        turn_s = self._rules.turn_s
        ours = [m for m in able if not m.node.price and self._clock - m.changed >= turn_s]
        waiting = min((m for m in ours if not m.active), key=lambda m: m.changed, default=None)
        working = min((m for m in ours if m.active), key=lambda m: m.changed, default=None)
        if waiting is None or working is None:
            return
        self._switch(waiting, on=True)
        if waiting.speed >= working.speed:
            self._switch(working, on=False)

    def _switch(self, member: _Member, *, on: bool) -> None:
        member.active, member.changed = on, self._clock

    def _told(self, able: list[_Member], bare: float) -> Decision:
        active = [member for member in able if member.active]
        on_trial = [m for m in self._members.values() if m.present and m.on_trial]
        rate = _total(active)
        missing = ""
        if on_trial and rate < bare:
            missing = ""  # not known yet
        elif rate < bare:
            missing = "rate"
        elif self.idle > self._rules.idle and self._extra >= 2.0:
            missing = "latency"
        return Decision(
            active=frozenset(member.node.key for member in (*active, *on_trial)),
            needed=bare,
            rate=rate,
            money=sum(member.node.price for member in (*active, *on_trial)),
            missing=missing,
            on_trial=len(on_trial),
            wanted=bare * (1 + self._rules.headroom) * self._extra,
        )


def _total(members: Iterable[_Member]) -> float:
    return sum(member.speed for member in members)
