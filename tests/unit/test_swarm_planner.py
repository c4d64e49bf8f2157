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

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echo_p2p.artifact import bitmap
from echo_p2p.swarm.planner import Limits, Order, Planner
from echo_p2p.swarm.scatter import Scatter, pick_chunk

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
        self.scatter = Scatter()
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
            index = self.scatter.pick(name, order.lacks, insist=order.insist, present=present)
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
    assert sum(swarm.hub_sent) <= 1.1 * count + 1


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
    assert [o.lacks for o in orders if o.source == HUB] == [0b1111_0000] * 2
    asked = {o.index for o in orders if o.source == "a"}
    assert len(asked) == Limits.per_peer
    assert asked < {0, 1, 2, 3}


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
    assert sorted(sources) == ["a", "a", "b", "b", "c", "c"]


def test_a_stalled_peer_costs_one_patience() -> None:
    node = planner(count=1, hub=None)
    node.peer_has("mute", 1, 0.0)
    (stalled,) = node.plan(0.0)
    node.peer_has("b", 1, 0.1)
    assert node.plan(0.1) == []
    due = node.wake_at(0.1)
    assert due == pytest.approx(Limits.first_patience_s)
    (again,) = node.plan(due)
    assert (again.source, again.index) == ("b", 0)
    assert node.arrived(again, 0, due + 0.01) == [stalled]
    assert not node.lacks


def test_elsewhere_silences_the_hub_until_the_patience_is_over() -> None:
    node = planner(count=4)
    node.peer_has("a", 0, 0.0)
    for order in node.plan(0.0):
        assert not order.insist
        node.elsewhere(order, 0.0)
    assert node.plan(0.0) == []
    wake = node.wake_at(0.0)
    assert wake is not None
    assert Limits.first_patience_s <= wake <= 2 * Limits.first_patience_s
    assert all(order.insist for order in node.plan(wake))


def test_insisting_goes_on_until_a_peer_has_news() -> None:
    node = planner(count=8)
    for order in node.plan(0.0):
        node.elsewhere(order, 0.0)
    now = 2 * Limits.first_patience_s
    order, _ = node.plan(now)
    node.arrived(order, 7, now)
    (order,) = node.plan(now)
    assert order.insist
    node.peer_has("a", 0b1, now)
    node.arrived(order, 6, now)
    assert [order.source for order in node.plan(now)] == ["a"]


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


def test_pick_chunk() -> None:
    assert pick_chunk(0b111, [0b001], insist=False, start=0) == 1
    assert pick_chunk(0b111, [0b001, 0b110], insist=False, start=0) is None
    assert pick_chunk(0b111, [0b011, 0b110], insist=True, start=2) == 2
    assert pick_chunk(0, [], insist=True, start=0) is None


def test_the_hub_gives_again_what_a_lost_node_was_given() -> None:
    hub = Scatter()
    assert hub.pick("a", 0b1, insist=False, present={"a", "b"}) == 0
    assert hub.pick("b", 0b1, insist=False, present={"a", "b"}) is None
    assert hub.pick("b", 0b1, insist=False, present={"b"}) == 0


def test_the_hub_gives_again_to_a_node_that_lost_it() -> None:
    hub = Scatter()
    everything = bitmap.full(16)
    first = [hub.pick("a", everything, insist=False, present={"a"}) for _ in range(16)]
    assert sorted(i for i in first if i is not None) == list(range(16))
    again = hub.pick("a", everything, insist=False, present={"a"})
    assert again == 0
