"""The planner alone, and in a simulated swarm: events on a heap, no clock, no socket.

A simulated request takes a random time, news of a chunk takes a random time to reach each peer,
and peers may be honest, leave, send garbage, refuse, or never answer.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from echo_p2p.artifact import bitmap
from echo_p2p.swarm.planner import Limits, Planner
from echo_p2p.swarm.scatter import Scatter
from echo_p2p.swarm.sources import Order

HUB = "hub"
DEADLINE_S = 30.0


@dataclass
class Node:
    planner: Planner
    known_by: dict[str, int] = field(default_factory=dict)
    gone: bool = False
    done_at: float | None = None


class Swarm:
    """`nodes` honest nodes and some that are not, all acquainted, around one hub."""

    def __init__(
        self, seed: int, *, count: int, nodes: int, bad: list[str], leavers: int = 0
    ) -> None:
        self.rng = random.Random(seed)
        self.now = 0.0
        self.count = count
        self.scatter = Scatter(count)
        self.hub_sent = [0] * count
        self.bad = {f"{kind}{i}": kind for i, kind in enumerate(bad)}
        self.plans = 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._tie = itertools.count()
        self._wakes: dict[str, float] = {}
        self.nodes: dict[str, Node] = {}
        for i in range(nodes):
            planner = Planner(
                count, 0, hub=HUB, limits=Limits(), now=0.0, rng=random.Random(self.rng.random())
            )
            self.nodes[f"node{i}"] = Node(planner)
        for name in self.nodes:
            self.at(self.rng.random() * 0.1, lambda name=name: self.start(name))
        for name in list(self.nodes)[:leavers]:
            self.at(self.rng.random() * 0.5, lambda name=name: self.leave(name))

    def at(self, delay: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + delay, next(self._tie), event))

    def run(self) -> None:
        while self._events and not all(
            n.gone or n.done_at is not None for n in self.nodes.values()
        ):
            self.now, _, event = heapq.heappop(self._events)
            event()
            assert self.plans < 400 * (self.count + 10) * len(self.nodes), "a planner runs hot"

    def start(self, name: str) -> None:
        node = self.nodes[name]
        for peer in self.bad:
            node.planner.peer_has(peer, bitmap.full(self.count), self.now)
        for peer, other in self.nodes.items():
            if peer != name and not other.gone:
                node.planner.peer_has(peer, other.planner.have, self.now)
                other.planner.peer_has(name, 0, self.now)
        self.plan(name)

    def leave(self, name: str) -> None:
        self.nodes[name].gone = True
        for peer, node in self.nodes.items():
            if not node.gone:
                node.planner.peer_gone(name)
                self.plan(peer)

    def plan(self, name: str) -> None:
        node = self.nodes[name]
        if node.gone or node.done_at is not None:
            return
        self.plans += 1
        for order in node.planner.plan(self.now):
            self.carry_out(name, order)
        node.planner.withdrawn()  # the simulated ones go on, and come to nothing
        again = node.planner.plan(self.now)
        assert not again, "a second plan at the same time orders more"
        wake = node.planner.wake_at(self.now)
        assert wake is None or wake > self.now
        if wake is not None and self._wakes.get(name) != wake:
            self._wakes[name] = wake
            self.at(wake - self.now, lambda: self.plan(name))

    def carry_out(self, name: str, order: Order) -> None:
        took = 0.005 + self.rng.random() * 0.05
        if order.source == HUB:
            present = {peer for peer, node in self.nodes.items() if not node.gone}
            self.scatter.keep_only(frozenset(present))
            index = self.ask_hub(name, order)
            if index is None:
                self.at(0.005, lambda: self.report(name, "elsewhere", order))
            else:
                self.hub_sent[index] += 1
                self.at(took, lambda: self.report(name, "chunk", order, index))
            return
        assert order.index is not None
        kind = self.bad.get(order.source)
        if kind == "mute":
            self.at(DEADLINE_S, lambda: self.report(name, "failed", order))
        elif kind == "refuser":
            self.at(0.005, lambda: self.report(name, "failed", order))
        elif kind == "liar":
            self.at(took, lambda: self.report(name, "lied", order))
        elif self.nodes[order.source].gone:
            self.at(0.005, lambda: self.report(name, "failed", order))
        else:
            assert self.nodes[order.source].planner.have >> order.index & 1
            self.at(took, lambda: self.report(name, "chunk", order, order.index))

    def ask_hub(self, name: str, order: Order) -> int | None:
        if order.index is not None:
            spared = self.scatter.spare(name, order.index, now=self.now)
            return order.index if spared else None
        rank = self.scatter.rank(
            name, order.lacks, insist=order.insist, backlog_s=0.0, now=self.now
        )
        if rank is None:
            return None
        return self.scatter.pick(name, order.lacks, insist=order.insist, now=self.now)

    def report(self, name: str, what: str, order: Order, index: int | None = None) -> None:
        node = self.nodes[name]
        if node.gone or node.done_at is not None:
            return
        planner = node.planner
        sender = self.nodes.get(order.source)
        if what == "chunk" and sender is not None and sender.gone:
            what = "failed"
        if what == "chunk":
            assert index is not None
            planner.arrived(order, index, self.now)
            for peer in self.nodes:
                if peer != name:
                    delay = 0.002 + self.rng.random() * 0.01
                    self.at(delay, lambda peer=peer: self.tell(peer, name, 1 << index))
            if not planner.lacks:
                node.done_at = self.now
        elif what == "elsewhere":
            planner.elsewhere(order, self.now)
        elif what == "lied":
            planner.distrust(order.source)
        else:
            planner.failed(order, self.now)
        self.plan(name)

    def tell(self, name: str, peer: str, have: int) -> None:
        if not self.nodes[name].gone and not self.nodes[peer].gone:
            self.nodes[name].planner.peer_has(peer, have, self.now)
            self.plan(name)

    def unfinished(self) -> list[str]:
        return [n for n, node in self.nodes.items() if not node.gone and node.done_at is None]


@settings(max_examples=1200, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    count=st.integers(1, 24),
    nodes=st.integers(1, 7),
    bad=st.lists(st.sampled_from(["liar", "mute", "refuser"]), max_size=4),
    leavers=st.integers(0, 3),
)
def test_everyone_completes_whatever_the_peers_do(
    seed: int, count: int, nodes: int, bad: list[str], leavers: int
) -> None:
    swarm = Swarm(seed, count=count, nodes=nodes, bad=bad, leavers=leavers)
    swarm.run()
    assert not swarm.unfinished()


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32), count=st.integers(1, 64), nodes=st.integers(1, 8))
def test_among_healthy_nodes_the_hub_sends_each_chunk_about_once(
    seed: int, count: int, nodes: int
) -> None:
    swarm = Swarm(seed, count=count, nodes=nodes, bad=[])
    swarm.run()
    assert not swarm.unfinished()
    assert sum(swarm.hub_sent) <= 1.2 * count + 2


@settings(max_examples=300, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    kind=st.sampled_from(["liar", "mute", "refuser"]),
    bad=st.integers(1, 8),
)
def test_a_lone_node_among_bad_peers_takes_it_all_from_the_hub(
    seed: int, kind: str, bad: int
) -> None:
    swarm = Swarm(seed, count=12, nodes=1, bad=[kind] * bad)
    swarm.run()
    assert not swarm.unfinished()
    assert sum(swarm.hub_sent) <= 12 + 2
    assert swarm.now < DEADLINE_S, "no wait for a request's deadline"


def test_many_nodes() -> None:
    swarm = Swarm(1, count=32, nodes=30, bad=["liar", "mute"])
    swarm.run()
    assert not swarm.unfinished()
    assert sum(swarm.hub_sent) <= 1.5 * 32


def planner(count: int = 8, have: int = 0, hub: str | None = HUB) -> Planner:
    return Planner(count, have, hub=hub, limits=Limits(), now=0.0, rng=random.Random(0))


def test_the_hub_is_asked_only_for_what_no_peer_has() -> None:
    node = planner()
    node.peer_has("a", 0b0000_1111, 0.0)
    orders = node.plan(0.0)
    assert [o.lacks for o in orders if o.source == HUB] == [0b1111_0000] * Limits.first_hub
    (asked,) = [o.index for o in orders if o.source == "a"]
    assert asked in {0, 1, 2, 3}


def test_the_rarest_chunk_goes_first() -> None:
    node = planner(hub=None)
    for peer in ("a", "b", "c"):
        node.peer_has(peer, 0b0111, 0.0)
    node.peer_has("c", 0b1000, 0.0)
    assert node.plan(0.0)[0].index == 3


def test_load_is_spread_over_the_holders() -> None:
    node = planner(count=6, hub=None)
    for peer in ("a", "b", "c"):
        node.peer_has(peer, 0b111111, 0.0)
    sources = [order.source for order in node.plan(0.0)]
    assert sorted(sources) == ["a", "b", "c"]


def arrive(node: Planner, order: Order, now: float) -> None:
    assert order.index is not None
    node.arrived(order, order.index, now)


def test_a_far_source_soon_holds_as_many_requests_as_cover_the_round_trip() -> None:
    node = planner(count=200, hub=None)
    node.peer_has("far", bitmap.full(200), 0.0)
    flying, now = node.plan(0.0), 0.0
    for _ in range(12):  # each round trip of 0.2 s it delivers all that it was asked for
        now += 0.2
        for order in flying:
            arrive(node, order, now)
        flying = node.plan(now)
    assert len(flying) == Limits.per_source


def test_a_source_that_many_ask_holds_few_requests() -> None:
    node = planner(count=200, hub=None)
    node.peer_has("busy", bitmap.full(200), 0.0)
    (first,) = node.plan(0.0)
    arrive(node, first, 0.1)
    flying, now = node.plan(0.1), 0.1
    for _ in range(20):  # then one chunk a second
        now += 1.0
        arrive(node, flying.pop(0), now)
        flying += node.plan(now)
    assert len(flying) <= 2


def test_the_quicker_holder_is_asked() -> None:
    node = planner(count=100, hub=None)
    for name in ("quick", "slow"):
        node.peer_has(name, bitmap.full(100), 0.0)
    took = {"quick": 0.01, "slow": 0.5}
    counts = {"quick": 0, "slow": 0}
    due = [(took[order.source], order.number, order) for order in node.plan(0.0)]
    now = 0.0
    while due and sum(counts.values()) < 60:
        due.sort(key=lambda item: item[:2])
        now, _, order = due.pop(0)
        counts[order.source] += 1
        arrive(node, order, now)
        for new in node.plan(now):
            last = max((at for at, _, o in due if o.source == new.source), default=now)
            due.append((last + took[new.source], new.number, new))
    assert counts["quick"] > 10 * counts["slow"]


def test_the_hub_helps_when_all_peers_are_busy() -> None:
    node = planner(count=40)
    for order in node.plan(0.0):
        node.elsewhere(order, 0.0)
    node.peer_has("slow", bitmap.full(40), 0.0)
    (first,) = node.plan(0.0)
    assert first.source == "slow"
    arrive(node, first, 0.19)
    spare = [order for order in node.plan(0.19) if order.source == HUB]
    assert spare
    assert all(order.index is not None and not order.insist for order in spare)
    for order in spare:
        node.elsewhere(order, 0.2)
    assert not [order for order in node.plan(0.2) if order.source == HUB]
    wake, asked = node.wake_at(0.2), list[Order]()
    while wake is not None and wake < 1.0 and not asked:
        asked = [order for order in node.plan(wake) if order.source == HUB]
        wake = node.wake_at(wake)
    assert asked


def test_a_peer_that_says_nothing_costs_little_and_is_not_counted_on() -> None:
    node = planner(count=1, hub=None)
    node.peer_has("mute", 1, 0.0)
    (stalled,) = node.plan(0.0)
    node.peer_has("b", 1, 0.1)
    now = 0.1
    while not (again := node.plan(now)):
        wake = node.wake_at(now)
        assert wake is not None
        now = wake
    assert now <= Limits.first_patience_s
    assert [(order.source, order.index) for order in again] == [("b", 0)]
    assert node.withdrawn() == [stalled]
    assert not node.arrived(again[0], 0, now + 0.01)
    assert not node.lacks


def test_elsewhere_silences_the_hub_until_the_patience_is_over() -> None:
    node = planner(count=4)
    node.peer_has("a", 0, 0.0)
    for order in node.plan(0.0):
        assert not order.insist
        node.elsewhere(order, 0.0)
    now, insisted = 0.0, list[Order]()
    while not insisted:
        orders = node.plan(now)
        assert not orders or now >= Limits.first_patience_s
        insisted = [order for order in orders if order.insist]
        for order in orders:
            node.elsewhere(order, now)
        wake = node.wake_at(now)
        assert wake is not None
        now = wake
    assert now >= Limits.first_patience_s


def insisting(node: Planner) -> list[Order]:
    """Its orders once it insists, at 2.0 s."""
    for order in node.plan(0.0):
        node.elsewhere(order, 0.0)
    return node.plan(2 * Limits.first_patience_s)


def test_insisting_goes_on_until_a_peer_has_news() -> None:
    node, now = planner(count=12), 2 * Limits.first_patience_s
    first, *others = insisting(node)
    assert first.insist
    node.arrived(first, 7, now)
    again = node.plan(now)
    assert again
    assert all(order.insist for order in again)
    for order in others + again:
        node.elsewhere(order, now)
    node.peer_has("a", 0b1, now)
    assert not any(order.insist for order in node.plan(now + 5.0))


def test_failures_back_off_and_end() -> None:
    node = planner(count=1, hub=None)
    now, failed_at = 0.0, []
    for _ in range(100):
        node.peer_has("a", 1, now)
        for order in node.plan(now):
            node.failed(order, now)
            failed_at.append(now)
        assert node.plan(now) == []
        wake = node.wake_at(now)
        now = now + 1.0 if wake is None else wake
    assert failed_at == [0.0, 0.25, 0.75, 1.75, 3.75]


def test_a_liar_never_comes_back() -> None:
    node = planner(hub=None)
    node.peer_has("liar", 0xFF, 0.0)
    node.distrust("liar")
    node.peer_has("liar", 0xFF, 1.0)
    assert node.plan(1.0) == []


def test_orders_in_flight_are_bounded() -> None:
    node = planner(count=1000)
    for i in range(100):
        node.peer_has(f"peer{i}", bitmap.full(1000), 0.0)
    assert len(node.plan(0.0)) == Limits.total
    assert Limits.for_chunks(4 << 20).total * (4 << 20) <= 32 << 20


def test_a_download_limit_bounds_what_is_asked_for_to_what_comes_in_time() -> None:
    assert Limits.for_chunks(1 << 20, 64_000).total == 1
    assert Limits.for_chunks(1 << 20, 1_000_000).total == 9
    assert Limits.for_chunks(1 << 20, 1 << 30) == Limits.for_chunks(1 << 20)
    assert Limits.for_chunks(1 << 20, 64_000).first_patience_s >= (1 << 20) / 64_000


def test_time_lost_on_peers_that_never_answer_is_not_held_against_one_that_may() -> None:
    """A chunk that went from one mute peer to the other and back is asked of a newcomer at once."""
    planner = Planner(1, 0, hub=None, limits=Limits(), now=0.0, rng=random.Random(0))
    for peer in ("mute0", "mute1", "mute2"):
        planner.peer_has(peer, 1, 0.0)
    now, asked = 0.0, list[str]()
    while now < 60.0:
        asked += [order.source for order in planner.plan(now)]
        planner.withdrawn()
        now = planner.wake_at(now) or 60.0
    assert len(asked) > 5
    planner.peer_has("honest", 1, now)
    asked.clear()
    while "honest" not in asked:
        asked += [order.source for order in planner.plan(now)]
        planner.withdrawn()
        wake_at = planner.wake_at(now)
        assert wake_at is not None
        now = wake_at
    assert now < 62.0
