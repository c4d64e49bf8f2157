"""Who asks whom for which chunk, next. Pure: time and randomness come in, requests come out.

The bound. N nodes, an artifact of F bytes, uplinks `u`, downlinks `d`: no way of sending it ends
before `max(F / u_hub, F / d_min, N F / (u_hub + sum u))`, since each byte leaves the hub once, each
node receives F, and together N F are uploaded; a fluid schedule reaches it (Kumar and Ross,
"Peer-assisted file distribution: the minimum distribution time", 2006; Mutualcast, Li et al., 2005:
each chunk goes to one node, which passes it to all, and what the hub's uplink has left it sends to
everybody). What is here approaches it by asking, with rules that keep every uplink busy with
something useful for as long as anything is lacking:

1. Scatter. A node keeps a few requests at the hub that say "of what nobody I know has, send me
   what you have sent to nobody" (`scatter`). While there is such a chunk the hub's uplink carries
   only those, so each leaves it about once, and each node soon has something no other has.
2. Gather. Whatever a peer has, the node asks for there: the rarest chunk first, from the holder
   expected to deliver first (`sources` measures them). A node passes on what it has while it still
   receives; with the rarest moving first, copies of each chunk grow geometrically, so that in a
   mesh of bounded degree a chunk reaches N nodes in O(log N) steps (Bonald et al., "Epidemic live
   streaming: optimal performance trade-offs", SIGMETRICS 2008).
3. Spare. When the peers that hold what is lacking all have as many of our requests as they can
   answer soon, then uplinks are the limit and the hub's is used too: the node asks the hub for one
   of those chunks by name. The hub agrees if it has nothing new to send, within its budget.
4. Few at a time. Uplinks serve one or two requests and queue the rest (`uploads`), so a chunk is
   passed on a chunk's time after it came; an asker keeps at a source no more than covers the round
   trip. A request in a queue is not a stall: a source's pace is known, and so is when to give up.
5. Move. A request that another source with room for one could answer in less than half the time
   that it is expected to take is withdrawn and made there: nothing stays in the queue of a slow
   uplink while a quick one that has the same is idle. What waits in a queue costs nothing to move;
   each further move of the same chunk must gain twice as much, so none is moved for ever.
6. Nothing waits for ever. A source that gives nothing for its patience is not counted on until it
   gives something. If neither a chunk nor news of one came for one to two patiences, the node
   insists, and the hub sends what it would not; it goes on insisting until there is news from a
   peer. Waiting a random time keeps nodes that miss the same chunk from all insisting: the first
   to insist becomes its source. A failed peer is left alone for a time that doubles, and is given
   up after `STRIKES` failures; one that sent a bad chunk, at once.

Why the uplinks stay busy: under rule 1 each node holds chunks that others lack from about
`N chunk / u_hub` on; by rule 2 every such chunk is asked for by everybody who knows of it; so an
uplink is idle only when all its peers have what it has. What is lost is the start (the time until
everybody holds something: chunks should be small, about F / 128), the end (the last chunk in each
queue, which rule 5 shortens) and the way (round trips, which rule 4 covers).

Progress: as long as the hub answers, every chunk arrives, whatever the peers do, since rule 6 ends
at an insisting request and the hub never refuses one for ever. Calls to `plan` cannot run hot: what
it returns is bounded by the slots, each slot is freed by an answer, and a source that fails or says
`Elsewhere` is closed for a time; when nothing can be asked, `wake_at` is later than now.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from echo_p2p.artifact import bitmap
from echo_p2p.swarm.sources import Order, Source

__all__ = ["Limits", "Order", "Planner"]

STRIKES = 5
_FIRST_SPARE_PAUSE_S = 0.1
_LONGEST_SPARE_PAUSE_S = 10.0
_SOONER = 2.0  # asked for again only where it should come in half the time,
_LEAST_GAIN_S = 0.1  # and this much earlier
_SOON_S = 0.2
_HOPE = 4.0  # times the patience, if peers have what we lack: in a crowd the first chunk takes long
_SMOOTH = 0.25
_HUB_SLACK = 3  # requests in its queue: which chunk it is gets decided when it is sent


@dataclass(frozen=True)
class Limits:
    """Slots of one fetch, and what to expect of a request before any was answered."""

    per_source: int = 16
    first_hub: int = 3
    total: int = 32
    least_patience_s: float = 0.5
    most_patience_s: float = 30.0
    first_patience_s: float = 1.0

    @classmethod
    def for_chunks(cls, chunk_bytes: int, download: int | None = None) -> Limits:
        """Keep at most 32 MiB (and 4 to 64 chunks) in flight; expect 250 kB/s at first.

        Of a `download` limit, in bytes a second, at most 10 s' worth: no request is late by it.
        """
        total, expected = max(4, min(64, (32 << 20) // chunk_bytes)), 250e3
        if download is not None:
            total = min(total, max(1, 10 * download // chunk_bytes))
            expected = min(expected, download)
        return cls(
            total=total,
            first_patience_s=max(cls.least_patience_s, chunk_bytes / expected),
        )


class Planner:
    """One node fetching one artifact.

    Args:
        count: chunks of the artifact.
        have: those already here (see `artifact.bitmap`).
        hub: the hub's peer id, or None to do without it.
        now: seconds on any clock that does not go back; every `now` must be of that clock.
    """

    def __init__(
        self,
        count: int,
        have: int,
        *,
        hub: str | None,
        limits: Limits,
        now: float,
        rng: random.Random,
    ) -> None:
        self.count = count
        self.have = have
        self._limits = limits
        self._rng = rng
        self._hub_id = hub
        self._hub = Source(window=limits.first_hub)
        self._peers: dict[str, Source] = {}
        self._given_up: set[str] = set()
        self._numbers = 0
        self._flying: dict[int, Order] = {}
        self._gap_s: float | None = None  # between two arrivals, from whomever
        self._arrived_at = now
        self.patience_s = limits.first_patience_s  # how long nothing may happen
        self._quiet_until = float("-inf")  # the hub has nothing new
        self._quiet = False
        self._spare_at = float("-inf")  # when the hub may be asked for a further copy
        self._spare_pause_s = _FIRST_SPARE_PAUSE_S
        self._insisting = False
        self._hoping = False  # some peer says that it has what we lack
        self._withdrawn: list[Order] = []
        self._moves: Counter[int] = Counter()
        self._moved = False  # the latest look moved a request
        self._progress(now)

    @property
    def lacks(self) -> int:
        return bitmap.full(self.count) & ~self.have

    # --- what happened --------------------------------------------------------------------------

    def peer_has(self, peer: str, have: int, now: float) -> None:
        """A peer turned up (`have` 0) or says that it has these chunks as well."""
        if peer in self._given_up or peer == self._hub_id:
            return
        source = self._peers.setdefault(peer, Source())
        news = have & self.lacks & ~source.have
        source.have |= have
        # the promises of a peer that keeps us waiting are no reason to go on waiting
        if news and source.usable(now) and news & ~self._offered(source, now):
            self._insisting = False
            self._progress(now)

    def peer_gone(self, peer: str) -> None:
        """The connection to a peer is lost; it may turn up again."""
        source = self._peers.pop(peer, None)
        if source is not None:
            for number in source.flying:
                del self._flying[number]
            self._quiet = False  # what the hub gave to it, it would give again

    def counts_on(self, peer: str, now: float) -> bool:
        """Whether a peer may still give something soon: not given up, and not kept waiting by."""
        source = self._peers.get(peer)
        return peer not in self._given_up and (source is None or source.usable(now))

    def distrust(self, peer: str) -> None:
        """A peer sent a bad chunk: have nothing to do with it again."""
        self._given_up.add(peer)
        self.peer_gone(peer)

    def arrived(self, order: Order, index: int, now: float) -> list[Order]:
        """A verified chunk is on disk. Returns other orders for it, to be cancelled."""
        source = self._close(order)
        if source is not None:
            source.strikes = source.closings = 0
            slack = _HUB_SLACK if source is self._hub else 1
            source.learn(order, now, self._limits.per_source, slack)
            self._watch(source)
            if order.index is not None and source is self._hub:
                self._spare_pause_s = _FIRST_SPARE_PAUSE_S
        if not self.have >> index & 1:
            self.have |= 1 << index
            self._learn(now)
            self._progress(now)
        needless = [other for other in self._flying.values() if other.index == index]
        for other in needless:
            rival = self._hub if other.source == self._hub_id else self._peers[other.source]
            if rival is not self._hub and not rival.usable(now):
                rival.close_for_a_while(now)  # it had its time
            self._close(other)
        return needless

    def elsewhere(self, order: Order, now: float) -> None:
        """The hub would not."""
        if order.insist:
            self.failed(order, now)
        elif self._close(order) is not None:
            if order.index is None:
                self._quiet, self._quiet_until = True, now + self.patience_s
            else:
                self._spare_at = max(self._spare_at, now + self._spare_pause_s)
                self._spare_pause_s = min(_LONGEST_SPARE_PAUSE_S, 2 * self._spare_pause_s)

    def failed(self, order: Order, now: float) -> None:
        """No chunk came of it: refused, timed out, connection lost."""
        source = self._close(order)
        if source is None:
            return
        source.strikes += 1
        source.close_for_a_while(now)
        if source is not self._hub and order.index is not None:
            source.have &= ~(1 << order.index)
            if source.strikes >= STRIKES:
                self.distrust(order.source)

    # --- what to do -----------------------------------------------------------------------------

    def plan(self, now: float) -> list[Order]:
        """Requests to make now, once those that `withdrawn` returns have been cancelled."""
        orders = list[Order]()
        while new := self._plan(now):
            orders += new
            if not self._moved:
                break
        moved = {order.number for order in self._withdrawn}
        return [order for order in orders if order.number not in moved]

    def withdrawn(self) -> list[Order]:
        """Requests not wanted any more since the last call: they were made elsewhere."""
        withdrawn, self._withdrawn = self._withdrawn, []
        return withdrawn

    def _plan(self, now: float) -> list[Order]:
        self._moved = False
        room = self._limits.total - len(self._flying)
        lacks = self.lacks
        if room <= 0 or not lacks:
            return []
        usable = {name: source for name, source in self._peers.items() if source.usable(now)}
        flying = 0
        for order in self._flying.values():
            if order.index is not None:
                flying |= 1 << order.index
        self._hoping = any(source.have & lacks for source in self._peers.values())
        rarity = bitmap.by_rarity(lacks, [source.have for source in usable.values()])
        # first what was asked for nowhere, then what was asked of peers that keep us waiting
        orders = self._from_hub(rarity[0] & ~flying or rarity[0], room, now)
        asked = self._from_peers(lacks & ~flying, rarity, usable, room - len(orders), now)
        orders += asked
        for order in asked:
            assert order.index is not None
            flying |= 1 << order.index
        wanted = lacks & ~flying & ~rarity[0]
        if len(orders) < room and wanted:
            wanted &= ~self._soon(usable.values(), now)
            orders += self._spare(wanted, rarity, room - len(orders), now)
        return orders + self._move(usable, now)

    def wake_at(self, now: float) -> float | None:
        """When to plan again though nothing happens; later than now. None: only when it does."""
        times = [self._hub.closed_until, self._stalls_at(), self._spare_at]
        if self._quiet:
            times.append(self._quiet_until)
        for source in self._peers.values():
            times += (source.closed_until, source.stalls_at)
        times += [o.next_look(now) for o in self._flying.values() if o.index is not None]
        return min((time for time in times if now < time < float("inf")), default=None)

    # --- inside ---------------------------------------------------------------------------------

    def _progress(self, now: float) -> None:
        self._progressed = now
        self._jitter = 1.0 + self._rng.random()

    def _learn(self, now: float) -> None:
        limits, gap = self._limits, now - self._arrived_at
        self._arrived_at = now
        self._gap_s = gap if self._gap_s is None else (1 - _SMOOTH) * self._gap_s + _SMOOTH * gap
        self.patience_s = min(limits.most_patience_s, max(limits.least_patience_s, 4 * self._gap_s))

    def _stalls_at(self) -> float:
        patience_s = self.patience_s * (_HOPE if self._hoping else 1.0)
        return self._progressed + patience_s * self._jitter

    def _watch(self, source: Source) -> None:
        """An unproven source is counted on for as long as the hub would take, and no longer."""
        limits = self._limits
        first_s = min(limits.first_patience_s, self._enough_s())
        source.watch(first_s, limits.least_patience_s, limits.most_patience_s)

    def _enough_s(self) -> float:
        """Peers that answer within this need no help from the hub."""
        return _SOON_S + 2 * (self._hub.least_s or 0.0)

    def _close(self, order: Order) -> Source | None:
        """Free the order's slot; None if it was not open any more."""
        if self._flying.pop(order.number, None) is None:
            return None
        source = self._hub if order.source == self._hub_id else self._peers[order.source]
        del source.flying[order.number]
        self._watch(source)
        return source

    def _offered(self, but: Source, now: float) -> int:
        offered = 0
        for source in self._peers.values():
            if source is not but and source.have & ~offered and source.usable(now):
                offered |= source.have
        return offered

    def _picks(self) -> int:
        """Requests to the hub that leave the choice to it."""
        return sum(order.index is None for order in self._hub.flying.values())

    def _may_spare(self, now: float) -> bool:
        return self._hub_id is not None and self._hub.closed_until <= now and self._spare_at <= now

    def _from_hub(self, asked: int, room: int, now: float) -> list[Order]:
        """Rule 1, and the insisting of rule 6."""
        hub, orders = self._hub, list[Order]()
        if self._hub_id is None or hub.closed_until > now or not asked:
            return orders
        if self._quiet and not self._insisting:
            if now >= self._stalls_at():
                self._insisting = True
            elif now < self._quiet_until:
                return orders
        # the hub's picks in flight are among these, we do not know which
        slots = min(room, hub.room, asked.bit_count() - self._picks())
        for _ in range(slots):
            insist = self._quiet and self._insisting
            orders.append(self._order(self._hub_id, hub, None, asked, now, insist=insist))
        return orders

    def _from_peers(
        self, wanted: int, rarity: list[int], usable: dict[str, Source], room: int, now: float
    ) -> list[Order]:
        """Rule 2."""
        orders = list[Order]()
        free = {
            name: source
            for name, source in usable.items()
            if source.room > 0 and source.have & wanted
        }
        for level in rarity[1:]:
            level &= wanted
            while level and free and len(orders) < room:
                index = bitmap.near(level, self._rng.randrange(self.count))
                level &= ~(1 << index)
                best = self._quickest(free, index)
                if best is None:
                    continue
                source = free[best]
                orders.append(self._order(best, source, index, 0, now))
                if source.room <= 0:
                    del free[best]
        return orders

    def _quickest(self, sources: dict[str, Source], index: int) -> str | None:
        best, least = None, float("inf")
        guess = self._guess_s()
        for name, source in sources.items():
            if source.have >> index & 1:
                wait = source.wait_s(guess) * (1 + 0.1 * self._rng.random())
                if wait < least:
                    best, least = name, wait
        return best

    def _guess_s(self) -> float:
        """The gap of a source that was never asked: as good as any, so that it is tried."""
        known = [source.gap_s for source in self._peers.values() if source.gap_s is not None]
        return min(known, default=0.0)

    def _soon(self, sources: Iterable[Source], now: float) -> int:
        """What peers will be free to give about as soon as the hub could."""
        enough_s, soon = self._enough_s(), 0
        for source in sources:
            if source.busy_s(now) < enough_s:
                soon |= source.have
        return soon

    def _spare(self, wanted: int, rarity: list[int], room: int, now: float) -> list[Order]:
        """Rule 3."""
        hub, orders = self._hub, list[Order]()
        if self._hub_id is None or not self._may_spare(now):
            return orders
        for level in rarity[1:]:
            level &= wanted
            while level and len(orders) < room and hub.room > 0:
                index = bitmap.near(level, self._rng.randrange(self.count))
                level &= ~(1 << index)
                orders.append(self._order(self._hub_id, hub, index, 0, now))
        return orders

    def _move(self, usable: dict[str, Source], now: float) -> list[Order]:
        """Rule 5."""
        orders = list[Order]()
        sources = {name: source for name, source in usable.items() if source.room > 0}
        if self._may_spare(now) and self._hub_id is not None and not self._picks():
            sources[self._hub_id] = self._hub
        if not sources:
            return orders
        flying = [(o.remaining_s(now), o) for o in self._flying.values() if o.index is not None]
        late = [entry for entry in flying if entry[0] > _LEAST_GAIN_S]
        late.sort(key=lambda entry: (-entry[0], entry[1].number))
        known = [source.gap_s for source in self._peers.values() if source.gap_s is not None]
        guess = sum(known) / len(known) if known else self._enough_s() / 2
        for remaining_s, order in late:
            assert order.index is not None
            sooner = _SOONER ** (1 + self._moves[order.index])
            best, least = None, (remaining_s - _LEAST_GAIN_S) / sooner
            for name, source in sources.items():
                if name == order.source or source.room <= 0:
                    continue
                if source is not self._hub and not source.have >> order.index & 1:
                    continue
                if (wait := source.wait_s(guess)) < least:
                    best, least = name, wait
            if best is not None:
                self._moves[order.index] += self._withdraw(order, now)
                orders.append(self._order(best, sources[best], order.index, 0, now))
        return orders

    def _withdraw(self, order: Order, now: float) -> bool:
        """False if the source had its time, so that leaving it is no sign of our haste."""
        source = self._hub if order.source == self._hub_id else self._peers[order.source]
        in_time = source is self._hub or source.usable(now)
        if not in_time:
            source.close_for_a_while(now)
        self._close(order)
        self._withdrawn.append(order)
        self._moved = True
        return in_time

    def _order(
        self,
        name: str,
        source: Source,
        index: int | None,
        lacks: int,
        now: float,
        *,
        insist: bool = False,
    ) -> Order:
        self._numbers += 1
        expected_at = now + source.wait_s(self._guess_s())
        order = Order(self._numbers, name, index, lacks, insist, now, expected_at)
        source.flying[order.number] = self._flying[order.number] = order
        source.full = source.room <= 0
        self._watch(source)
        return order
