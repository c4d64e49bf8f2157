"""A swarm as a discrete-event simulation, driven by the program's own decisions.

The planner of each node, the hub's scatter and everybody's upload queue are the program's code
(`echo_p2p/swarm`); what is simulated is the network between them and the thin exchange around them:

- An uplink is shared equally by the chunks it carries, a downlink likewise, and what one end cannot
  take the others get (one pass of water-filling at the sender; not the full max-min fixed point).
- A message takes half a round trip. News of chunks goes as answers to held requests, so along one
  edge at most once a round trip. A chunk is checked and written in `CHECK_S`.
- A connection carries a window a round trip. The window is that of TCP's slow start: ten packets at
  first, doubled each round trip that it is used, halved for each `IDLE_S` that it is not.
- No loss, no CPU, no jitter of the operating system.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from echo_p2p.artifact import bitmap
from echo_p2p.swarm.planner import Limits, Order, Planner
from echo_p2p.swarm.scatter import FRESH, FRESH_LATER, SPARE, Scatter
from echo_p2p.swarm.uploads import Uploads

HUB = "hub"
CHECK_S = 0.002
PLAN_S = 0.001  # a program looks at what has come together
ELSEWHERE_S = 0.001
IDLE_S = 0.3  # TCP forgets a window after about this
FIRST_WINDOW = 14_600
CALLED, FOLLOWED, INTRODUCED = 16, 32, 32


@dataclass(frozen=True)
class Link:
    """Bytes a second each way, and this end's share of every round trip, in seconds."""

    up: float
    down: float
    rtt_s: float = 0.001


@dataclass(eq=False)
class Transfer:
    """One chunk under way."""

    source: Site
    to: Site
    order: Order
    index: int
    ticket: int
    left: float
    rate: float = 0.0
    at: float = 0.0
    version: int = 0


@dataclass(eq=False)
class Site:
    """A hub or a node."""

    name: str
    link: Link
    uploads: Uploads
    serves: bool = True
    planner: Planner | None = None
    peers: dict[str, Site] = field(default_factory=dict)
    sending: list[Transfer] = field(default_factory=list)
    receiving: list[Transfer] = field(default_factory=list)
    asked: dict[int, tuple[Site, Order]] = field(default_factory=dict)
    tickets: dict[tuple[str, int], int] = field(default_factory=dict)
    by_ticket: dict[int, Transfer] = field(default_factory=dict)
    windows: dict[str, tuple[float, float]] = field(default_factory=dict)
    growing: set[str] = field(default_factory=set)
    next_news: dict[str, float] = field(default_factory=dict)
    joined_at: float = 0.0
    done_at: float | None = None
    gone: bool = False
    stopped: bool = False
    planning: bool = False
    wake: float = math.inf
    sent_bytes: float = 0.0


class Swarm:
    """Nodes around one hub, with one artifact of `count` chunks of `chunk` bytes."""

    def __init__(self, *, seed: int, count: int, chunk: int, hub: Link) -> None:
        self.rng = random.Random(seed)
        self.now = 0.0
        self.count, self.chunk = count, chunk
        self.scatter = Scatter(count)
        self.hub = Site(HUB, hub, Uploads())
        self.nodes: dict[str, Site] = {}
        self.events = self.plans = self.wasted = 0
        self.unfinished = 0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []

    # --- who is there ---------------------------------------------------------------------------

    def join(self, link: Link, have: int = 0) -> Site:
        """A node that is connected to the hub and knows nobody yet."""
        name = f"node{len(self.nodes)}"
        planner = Planner(
            self.count,
            have,
            hub=HUB,
            limits=Limits.for_chunks(self.chunk),
            now=self.now,
            rng=random.Random(self.rng.random()),
        )
        node = Site(name, link, Uploads(), link.up > 0, planner, joined_at=self.now)
        self.nodes[name] = node
        self.unfinished += 1
        self._plan_soon(node)
        return node

    def introduce(self, node: Site) -> None:
        """Let it call some of those there are, as the exchange does."""
        present = [other for other in self.nodes.values() if other is not node and not other.gone]
        told = self.rng.sample(present, min(INTRODUCED, len(present)))
        told = [other for other in told if other.name not in node.peers]
        room = max(0, CALLED - len(node.peers))
        for other in told[:room]:
            if len(other.peers) < FOLLOWED and len(node.peers) < FOLLOWED:
                self.meet(node, other)

    def meet(self, one: Site, other: Site) -> None:
        """They are connected, and follow each other."""
        for a, b in ((one, other), (other, one)):
            a.peers[b.name] = b
            assert a.planner is not None
            assert b.planner is not None
            have = b.planner.have if b.serves else 0
            a.planner.peer_has(b.name, have, self.now)
            self._plan_soon(a)

    def leave(self, node: Site) -> None:
        """Its connections break."""
        node.gone = True
        if node.done_at is None:
            self.unfinished -= 1
        self.scatter.keep_only(
            frozenset(site.name for site in self.nodes.values() if not site.gone)
        )
        for transfer in [*node.sending, *node.receiving]:
            self._stop(transfer)
        for transfer in list(node.by_ticket.values()):
            self._stop(transfer)
        for site in (self.hub, *node.peers.values()):
            for ticket, (asker, _) in list(site.asked.items()):
                if asker is node:
                    self._drop(site, ticket)
        for peer in node.peers.values():
            peer.peers.pop(node.name, None)
            if not peer.gone and peer.planner is not None:
                peer.planner.peer_gone(node.name)
                self._plan_soon(peer)

    def stop(self, node: Site) -> None:
        """Suspended: its connections stay, nothing happens on them."""
        node.stopped = True
        if node.done_at is None:
            self.unfinished -= 1
        for transfer in [*node.sending, *node.receiving]:
            self._share(transfer.source)

    # --- the loop -------------------------------------------------------------------------------

    def at(self, time: float, act: Callable[..., None], *args: Any) -> None:
        self.events += 1
        heapq.heappush(self._heap, (time, self.events, act, args))

    def run(self, until: float) -> None:
        """Until all that can finish have, or it is `until`."""
        while self._heap and self.unfinished > 0:
            self.now, _, act, args = heapq.heappop(self._heap)
            if self.now > until:
                return
            act(*args)

    # --- planning -------------------------------------------------------------------------------

    def _plan_soon(self, node: Site) -> None:
        if not node.planning and node.done_at is None and not node.gone:
            node.planning = True
            self.at(self.now + PLAN_S, self._plan, node)

    def _plan(self, node: Site) -> None:
        node.planning = False
        planner = node.planner
        if planner is None or node.gone or node.stopped or node.done_at is not None:
            return
        self.plans += 1
        backlog = node.uploads.backlog_s(self.now) if node.serves else None
        orders = planner.plan(self.now)
        self._withdraw(node, planner.withdrawn())
        for order in orders:
            source = self.hub if order.source == HUB else self.nodes[order.source]
            self.at(self.now + self._way(node, source), self._receive, source, node, order, backlog)
        wake = planner.wake_at(self.now)
        if wake is not None and not self.now < node.wake <= wake:
            node.wake = wake
            self.at(wake, self._plan_soon, node)

    def _way(self, one: Site, other: Site) -> float:
        return (one.link.rtt_s + other.link.rtt_s) / 2

    # --- serving --------------------------------------------------------------------------------

    def _receive(self, source: Site, asker: Site, order: Order, backlog_s: float | None) -> None:
        """A request has come."""
        if source.stopped or asker.gone:
            return
        rank: int | None = FRESH
        if source.gone:
            self._answer(source, asker, "failed", order)
            return
        if source is self.hub:
            rank = self._rank(asker, order, backlog_s)
        if rank is None:
            self._answer(source, asker, "elsewhere", order)
            return
        ticket = source.uploads.ask(
            asker.name, rank=rank, size=self.chunk, rtt_s=2 * self._way(source, asker)
        )
        source.asked[ticket] = asker, order
        source.tickets[asker.name, order.number] = ticket
        self._pump(source)

    def _rank(self, asker: Site, order: Order, backlog_s: float | None) -> int | None:
        if order.index is None:
            return self.scatter.rank(
                asker.name,
                order.lacks,
                insist=order.insist,
                backlog_s=backlog_s,
                now=self.now,
            )
        if self.hub.uploads.waiting(FRESH_LATER):
            return None
        return SPARE if self.scatter.may_spare(asker.name, order.index, now=self.now) else None

    def _pick(self, asker: Site, order: Order) -> int | None:
        if order.index is None:
            return self.scatter.pick(asker.name, order.lacks, insist=order.insist, now=self.now)
        spared = self.scatter.spare(asker.name, order.index, now=self.now)
        return order.index if spared else None

    def _pump(self, source: Site) -> None:
        while started := source.uploads.start(self.now):
            for ticket in started:
                asker, order = source.asked[ticket]
                index = order.index
                if source is self.hub:
                    index = self._pick(asker, order)
                if index is None:
                    self._drop(source, ticket, pump=False)
                    self._answer(source, asker, "elsewhere", order)
                    continue
                transfer = Transfer(source, asker, order, index, ticket, float(self.chunk))
                source.by_ticket[ticket] = transfer
                self._flow(transfer)
        wake = source.uploads.wake_at(self.now)
        if wake is not None:
            self.at(wake, self._pump_at, source)

    def _pump_at(self, source: Site) -> None:
        if not source.gone and not source.stopped:
            self._pump(source)

    def _flow(self, transfer: Transfer) -> None:
        source, to = transfer.source, transfer.to
        transfer.at = self.now
        source.sending.append(transfer)
        to.receiving.append(transfer)
        rtt = 2 * self._way(source, to)
        window, used_at = source.windows.get(to.name, (FIRST_WINDOW, self.now))
        window = max(FIRST_WINDOW, window * 0.5 ** int((self.now - used_at) / max(IDLE_S, rtt)))
        source.windows[to.name] = window, self.now
        if window / rtt < min(source.link.up, to.link.down) and to.name not in source.growing:
            source.growing.add(to.name)
            self.at(self.now + rtt, self._grow, source, to)
        self._share(source)
        self._share_others(transfer)

    def _grow(self, source: Site, to: Site) -> None:
        """A round trip later."""
        source.growing.discard(to.name)
        if not any(transfer.to is to for transfer in source.sending):
            return
        rtt = 2 * self._way(source, to)
        window = 2 * source.windows[to.name][0]
        source.windows[to.name] = window, self.now
        if window / rtt < min(source.link.up, to.link.down):
            source.growing.add(to.name)
            self.at(self.now + rtt, self._grow, source, to)
        self._share(source)

    def _share_others(self, transfer: Transfer) -> None:
        """Downlinks matter only where they are short."""
        to = transfer.to
        if sum(t.rate for t in to.receiving) > 0.9 * to.link.down:
            for source in {t.source.name: t.source for t in to.receiving}.values():
                if source is not transfer.source:
                    self._share(source)

    def _share(self, source: Site) -> None:
        """New rates for all that it sends."""
        caps = []
        for transfer in source.sending:
            to = transfer.to
            if source.stopped or to.stopped:
                caps.append((0.0, transfer))
                continue
            others = sum(t.rate for t in to.receiving if t is not transfer)
            fair = to.link.down / max(1, len(to.receiving))
            cap = max(fair, to.link.down - others)
            if to.name in source.growing:
                same = sum(t.to is to for t in source.sending)
                cap = min(cap, source.windows[to.name][0] / (2 * self._way(source, to)) / same)
            caps.append((cap, transfer))
        caps.sort(key=lambda item: item[0])
        left = source.link.up
        for place, (cap, transfer) in enumerate(caps):
            rate = min(cap, left / (len(caps) - place))
            left -= rate
            if rate != transfer.rate or transfer.version == 0:
                transfer.left -= transfer.rate * (self.now - transfer.at)
                transfer.at, transfer.rate = self.now, rate
                transfer.version += 1
                if rate > 0:
                    due = self.now + max(0.0, transfer.left) / rate
                    self.at(due, self._sent, transfer, transfer.version)

    def _sent(self, transfer: Transfer, version: int) -> None:
        source, asker = transfer.source, transfer.to
        if version != transfer.version or source.by_ticket.get(transfer.ticket) is not transfer:
            return
        source.sent_bytes += self.chunk
        window, _ = source.windows[asker.name]
        source.windows[asker.name] = window, self.now
        self._end(transfer, sent=True)
        delay = self._way(source, asker) + CHECK_S
        self.at(self.now + delay, self._arrive, source, asker, transfer.order, transfer.index)

    def _end(self, transfer: Transfer, *, sent: bool) -> None:
        source = transfer.source
        del source.by_ticket[transfer.ticket]
        transfer.version += 1
        source.sending.remove(transfer)
        transfer.to.receiving.remove(transfer)
        source.uploads.end(transfer.ticket, self.now, sent=sent)
        _, order = source.asked.pop(transfer.ticket)
        source.tickets.pop((transfer.to.name, order.number), None)
        self._share(source)
        self._share_others(transfer)
        if not source.gone:
            self._pump(source)

    def _stop(self, transfer: Transfer) -> None:
        if transfer.source.by_ticket.get(transfer.ticket) is transfer:
            self.wasted += int(transfer.rate > 0)
            self._end(transfer, sent=False)

    def _drop(self, source: Site, ticket: int, *, pump: bool = True) -> None:
        if ticket in source.by_ticket:
            self._stop(source.by_ticket[ticket])
            return
        asker, order = source.asked.pop(ticket)
        source.tickets.pop((asker.name, order.number), None)
        source.uploads.end(ticket, self.now, sent=False)
        if pump:
            self._pump(source)

    def _cancel(self, source: Site, asker: Site, number: int) -> None:
        ticket = source.tickets.get((asker.name, number))
        if ticket is not None and not source.stopped:
            self._drop(source, ticket)

    def _withdraw(self, node: Site, orders: list[Order]) -> None:
        for order in orders:
            source = self.hub if order.source == HUB else self.nodes[order.source]
            self.at(self.now + self._way(node, source), self._cancel, source, node, order.number)

    # --- being answered -------------------------------------------------------------------------

    def _answer(self, source: Site, asker: Site, what: str, order: Order) -> None:
        delay = self._way(source, asker) + ELSEWHERE_S
        self.at(self.now + delay, self._answered, asker, what, order)

    def _answered(self, asker: Site, what: str, order: Order) -> None:
        if asker.gone or asker.stopped or asker.planner is None or asker.done_at is not None:
            return
        getattr(asker.planner, what)(order, self.now)
        self._plan_soon(asker)

    def _arrive(self, source: Site, node: Site, order: Order, index: int) -> None:
        planner = node.planner
        if node.gone or node.stopped or planner is None or node.done_at is not None:
            return
        if planner.have >> index & 1:
            self.wasted += 1
        self._withdraw(node, planner.arrived(order, index, self.now))
        for name in node.peers:
            self._tell(node, name)
        if not planner.lacks:
            node.done_at = self.now
            self.unfinished -= 1
        else:
            self._plan_soon(node)

    def _tell(self, node: Site, name: str) -> None:
        """News goes out now, or when the last answer's round trip is over."""
        if not node.serves or node.next_news.get(name, -1.0) > self.now:
            return
        peer = node.peers.get(name)
        if peer is None or peer.done_at is not None:
            return
        assert node.planner is not None
        rtt = 2 * self._way(node, peer)
        node.next_news[name] = self.now + rtt
        self.at(self.now + rtt / 2, self._hear, peer, node.name, node.planner.have)
        self.at(self.now + rtt, self._tell_again, node, name, node.planner.have)

    def _tell_again(self, node: Site, name: str, told: int) -> None:
        present = not node.gone and not node.stopped
        if present and node.planner is not None and node.planner.have != told:
            self._tell(node, name)

    def _hear(self, node: Site, name: str, have: int) -> None:
        if node.gone or node.stopped or node.planner is None or node.done_at is not None:
            return
        if name in node.peers:
            node.planner.peer_has(name, have, self.now)
            self._plan_soon(node)


def bound(size: float, hub: Link, nodes: list[Link]) -> float:
    """Seconds no broadcast can beat."""
    total = hub.up + sum(link.up for link in nodes)
    slowest = min(link.down for link in nodes)
    return max(size / hub.up, size / slowest, len(nodes) * size / total)


def everything(count: int) -> int:
    return bitmap.full(count)
