"""Who asks whom for which chunk, next. Pure: time and randomness come in, requests come out.

The hub scatters, the nodes gather from each other:

1. A node keeps a few requests at the hub that say "of what I lack, send me what you have sent to
   nobody". `scatter` answers with a chunk that no connected node was given, so the hub's uplink
   carries each chunk about once, and each node soon has something that no other has. When there is
   no such chunk the hub says `Elsewhere`, and the node leaves it alone.
2. Whatever a known peer has, the node asks for there and not at the hub: the rarest chunk first
   (held by one, by two, by more of the peers), from its least busy holder, ties broken at random.
   A node passes on what it has while it still receives; with every chunk at some node and the
   rarest moving first, the number of copies of each grows geometrically (Cohen's argument for
   BitTorrent's local rarest first; Legout et al., IMC 2006).
3. Nothing waits for ever. A request older than the patience (four times what a chunk has been
   taking) makes its peer unusable until it answers, and once nothing else is left to ask for, its
   chunk is asked for elsewhere too. If neither a chunk nor news of one came for one to two
   patiences, the node insists, and the hub sends what it would not; it goes on insisting until
   there is news from a peer. Waiting a random time keeps nodes that miss the same chunk from all
   insisting: the first to insist becomes its source. A failed peer is left alone for a time that
   doubles, and is given up after `STRIKES` failures; one that sent a bad chunk, at once.

Progress: as long as the hub answers, every chunk arrives, whatever the peers do, since rule 3 ends
at an insisting request and the hub never refuses one. Calls to `plan` cannot run hot: what it
returns is bounded by the slots, each slot is freed by an answer, and a source that fails is closed
for a time; when nothing can be asked, `wake_at` is later than now.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from echo_p2p.artifact import bitmap

STRIKES = 5
_FIRST_BACKOFF_S = 0.25
_LONGEST_BACKOFF_S = 30.0


@dataclass(frozen=True)
class Limits:
    """Slots of one fetch, and what to expect of a request before any was answered."""

    per_peer: int = 3
    hub: int = 2
    total: int = 32
    least_patience_s: float = 0.5
    most_patience_s: float = 30.0
    first_patience_s: float = 1.0

    @classmethod
    def for_chunks(cls, chunk_bytes: int) -> Limits:
        """Keep at most 32 MiB (and 4 chunks) in flight; expect 250 kB/s at first."""
        return cls(
            total=max(4, min(32, (32 << 20) // chunk_bytes)),
            first_patience_s=max(cls.least_patience_s, chunk_bytes / 250e3),
        )


@dataclass(frozen=True)
class Order:
    """One request to make. `index` None asks the hub to pick among `lacks`."""

    number: int
    source: str
    index: int | None
    lacks: int
    insist: bool
    since: float


@dataclass
class _Source:
    have: int = 0
    flying: dict[int, Order] = field(default_factory=dict)
    strikes: int = 0
    closed_until: float = float("-inf")


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
        self._hub = _Source()
        self._peers: dict[str, _Source] = {}
        self._given_up: set[str] = set()
        self._numbers = 0
        self._flying: dict[int, Order] = {}
        self._took_s: float | None = None
        self.patience_s = limits.first_patience_s  # how long a request may take before it stalls
        self._quiet = False  # the hub said Elsewhere
        self._insisting = False
        self._progress(now)

    @property
    def lacks(self) -> int:
        return bitmap.full(self.count) & ~self.have

    # --- what happened --------------------------------------------------------------------------

    def peer_has(self, peer: str, have: int, now: float) -> None:
        """A peer turned up (`have` 0) or says that it has these chunks as well."""
        if peer in self._given_up or peer == self._hub_id:
            return
        source = self._peers.setdefault(peer, _Source())
        news = have & self.lacks & ~self._offered(now)
        source.have |= have
        # the promises of a peer that keeps us waiting are no reason to go on waiting
        if news and self._usable(source, now):
            self._insisting = False
            self._progress(now)

    def peer_gone(self, peer: str) -> None:
        """The connection to a peer is lost; it may turn up again."""
        source = self._peers.pop(peer, None)
        if source is not None:
            for number in source.flying:
                del self._flying[number]
            self._quiet = False  # what the hub gave to it, it would give again

    def distrust(self, peer: str) -> None:
        """A peer sent a bad chunk: have nothing to do with it again."""
        self._given_up.add(peer)
        self.peer_gone(peer)

    def arrived(self, order: Order, index: int, now: float) -> list[Order]:
        """A verified chunk is on disk. Returns other orders for it, to be cancelled."""
        source = self._close(order)
        if source is not None:
            source.strikes = 0
            self._learn(now - order.since)
        if not self.have >> index & 1:
            self.have |= 1 << index
            self._progress(now)
        needless = [other for other in self._flying.values() if other.index == index]
        for other in needless:
            if self._due(other) <= now:
                self.failed(other, now)
            else:
                self._close(other)
        return needless

    def elsewhere(self, order: Order, now: float) -> None:
        """The hub would not pick."""
        if order.insist:
            self.failed(order, now)
        elif self._close(order) is not None:
            self._quiet = True

    def failed(self, order: Order, now: float) -> None:
        """No chunk came of it: refused, timed out, connection lost."""
        source = self._close(order)
        if source is None:
            return
        source.strikes += 1
        backoff = min(_LONGEST_BACKOFF_S, _FIRST_BACKOFF_S * 2 ** min(source.strikes - 1, 10))
        source.closed_until = max(source.closed_until, now + backoff)
        if order.index is not None:
            source.have &= ~(1 << order.index)
            if source.strikes >= STRIKES:
                self.distrust(order.source)

    # --- what to do -----------------------------------------------------------------------------

    def plan(self, now: float) -> list[Order]:
        """Requests to make now."""
        orders: list[Order] = []
        room = self._limits.total - len(self._flying)
        wanted = self._wanted(now) if room > 0 else 0
        if not wanted:
            return orders
        usable = {n: source for n, source in self._peers.items() if self._usable(source, now)}
        rarity = bitmap.by_rarity(self.lacks, [source.have for source in usable.values()])
        while len(orders) < room:
            order = self._from_hub(wanted & rarity[0], now)
            order = order or self._from_peer(wanted, rarity, usable, now)
            if order is None:
                break
            orders.append(order)
            if order.index is not None:
                wanted = wanted & ~(1 << order.index) or self._wanted(now)
        return orders

    def wake_at(self, now: float) -> float | None:
        """When to plan again though nothing happens; later than now. None: only when it does."""
        times = [source.closed_until for source in (self._hub, *self._peers.values())]
        times += [self._due(order) for order in self._flying.values()]
        times.append(self._stalls_at())
        return min((time for time in times if time > now), default=None)

    # --- inside ---------------------------------------------------------------------------------

    def _progress(self, now: float) -> None:
        self._progressed = now
        self._jitter = 1.0 + self._rng.random()

    def _learn(self, took_s: float) -> None:
        limits, before = self._limits, self._took_s
        self._took_s = took_s if before is None else 0.75 * before + 0.25 * took_s
        patience = max(limits.least_patience_s, 4 * self._took_s)
        self.patience_s = min(limits.most_patience_s, patience)

    def _stalls_at(self) -> float:
        return self._progressed + self.patience_s * self._jitter

    def _due(self, order: Order) -> float:
        return order.since + self.patience_s

    def _close(self, order: Order) -> _Source | None:
        """Free the order's slot; None if it was not open any more."""
        if self._flying.pop(order.number, None) is None:
            return None
        source = self._hub if order.source == self._hub_id else self._peers[order.source]
        del source.flying[order.number]
        return source

    def _usable(self, source: _Source, now: float) -> bool:
        oldest = next(iter(source.flying.values()), None)
        return source.closed_until <= now and (oldest is None or self._due(oldest) > now)

    def _offered(self, now: float) -> int:
        offered = 0
        for source in self._peers.values():
            if source.have & ~offered and self._usable(source, now):
                offered |= source.have
        return offered

    def _wanted(self, now: float) -> int:
        """Chunks to ask for: those asked for nowhere, or else those whose request stalls."""
        flying = stalled = again = 0
        for order in self._flying.values():
            if order.index is not None:
                bit = 1 << order.index
                again |= flying & bit
                flying |= bit
                if self._due(order) <= now:
                    stalled |= bit
        return self.lacks & ~flying or self.lacks & stalled & ~again

    def _from_hub(self, asked: int, now: float) -> Order | None:
        hub = self._hub
        if self._hub_id is None or hub.closed_until > now or len(hub.flying) >= self._limits.hub:
            return None
        # the hub's picks in flight are among these, we do not know which
        if asked.bit_count() <= len(hub.flying):
            return None
        if self._quiet and not self._insisting:
            if now < self._stalls_at():
                return None
            self._insisting = True
        return self._order(self._hub_id, hub, None, asked, now)

    def _from_peer(
        self, wanted: int, rarity: list[int], usable: dict[str, _Source], now: float
    ) -> Order | None:
        free = [n for n, source in usable.items() if len(source.flying) < self._limits.per_peer]
        free.sort(key=lambda name: (len(usable[name].flying), self._rng.random()))
        for level in rarity[1:]:
            if not level & wanted:
                continue
            for name in free:
                if candidates := level & wanted & usable[name].have:
                    index = bitmap.near(candidates, self._rng.randrange(self.count))
                    return self._order(name, usable[name], index, 0, now)
        return None

    def _order(
        self, name: str, source: _Source, index: int | None, lacks: int, now: float
    ) -> Order:
        self._numbers += 1
        order = Order(self._numbers, name, index, lacks, index is None and self._quiet, now)
        source.flying[order.number] = self._flying[order.number] = order
        return order
