"""The lease book: how far ahead nodes may work, single use, expiry, and nothing ever starves."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo_hub.rollouts.buffer import Buffer, ScoredGroup
from echo_hub.rollouts.leases import LeaseBook, LeaseRules, OpenLease, lease_seed

SECRET = b"s" * 32
NODES = [bytes([i]) * 32 for i in range(3)]


def book(
    *,
    batch: int = 4,
    staleness: int = 2,
    per_node: int = 1000,
    updates: int = 0,
    seconds: float = 10.0,
    rng: random.Random | None = None,
) -> LeaseBook:
    rules = LeaseRules(batch, staleness, 8, seconds, per_node, updates)
    source = rng or random.Random(0)
    return LeaseBook(rules, secret=SECRET, new_id=lambda: source.randbytes(16))


def grant(
    one: LeaseBook, want: int = 100, *, node: bytes = NODES[0], version: int = 0, elsewhere: int = 0
) -> list[OpenLease]:
    return one.grant(node, version, want, elsewhere=elsewhere, now=0.0)


def test_min_version_rises_with_what_is_ahead() -> None:
    one = book(batch=2, staleness=1)
    one.version = 5
    leases = grant(one, version=5)
    assert [lease.min_version for lease in leases] == [4, 4, 5, 5]
    assert [lease.index for lease in leases] == [0, 1, 2, 3]
    assert all(lease.max_version is None for lease in leases)


def test_an_older_node_gets_only_what_it_is_fresh_enough_for() -> None:
    one = book(batch=2, staleness=1)
    one.version = 5
    assert grant(one, version=3) == []
    assert len(grant(one, version=4)) == 2
    assert grant(one, version=4) == []
    assert len(grant(one, version=5)) == 2


def test_sequential_mode_is_staleness_zero() -> None:
    one = book(batch=3, staleness=0)
    assert len(grant(one)) == 3
    for lease_id in list(one._open):
        one.answer(lease_id)
    assert grant(one, elsewhere=3) == []  # the learner has them
    one.version = 1
    assert grant(one, version=0) == []
    assert [lease.min_version for lease in grant(one, version=1)] == [1, 1, 1]


def test_nothing_is_leased_beyond_the_last_update() -> None:
    one = book(batch=4, staleness=3, updates=6)
    one.version = 4
    assert len(grant(one, version=4)) == 8
    one = book(batch=4, staleness=3, updates=6)
    one.version = 6
    assert grant(one, version=6) == []


def test_a_node_holds_a_bounded_share() -> None:
    one = book(per_node=5)
    assert len(grant(one)) == 5
    assert len(grant(one, node=NODES[1])) == 5


def test_leases_are_of_one_node_and_used_once() -> None:
    one = book()
    first, second = grant(one, 2)
    assert one.release([first.lease_id], NODES[1]) == []
    assert one.answer(first.lease_id) == first
    assert one.get(first.lease_id) is None
    with pytest.raises(KeyError):
        one.answer(first.lease_id)
    assert one.release([first.lease_id, second.lease_id], NODES[0]) == [second]
    assert one.running == 0


def test_an_expired_prompt_goes_out_again_under_a_new_lease_and_seed() -> None:
    one = book(seconds=10)
    first, second = grant(one, 2)
    assert one.expire(9.9) == []
    one.answer(second.lease_id)
    assert one.expire(10.0) == [first]
    again = grant(one, 1, node=NODES[1])[0]
    assert again.index == first.index
    assert again.lease_id != first.lease_id
    assert again.seed != first.seed
    assert again.seed == lease_seed(SECRET, again.lease_id)
    assert 0 <= again.seed < 2**63
    assert lease_seed(b"t" * 32, again.lease_id) != again.seed


def test_evaluations_go_first_are_pinned_and_do_not_count() -> None:
    one = book(batch=2, staleness=0)
    one.version = 3
    one.open_evaluation(3, range(5))
    assert grant(one, version=2) == []
    assert one.work(3, elsewhere=0) == 7
    leases = grant(one, 6, version=3)
    assert [lease.split for lease in leases] == ["heldout"] * 5 + ["train"]
    assert {(lease.min_version, lease.max_version, lease.group_size) for lease in leases[:5]} == {
        (3, 3, 1)
    }
    assert one.running == 1
    one.release([leases[1].lease_id], NODES[0])
    one.answer(leases[0].lease_id)
    again = grant(one, 1, version=3)[0]
    assert (again.split, again.index) == ("heldout", 1)
    assert {lease.index for lease in one.close_evaluation(3)} == {1, 2, 3, 4}
    assert one.get(again.lease_id) is None


def test_open_leases_and_returned_prompts_are_taken_over() -> None:
    old = grant(book(), 3)
    one = LeaseBook(
        LeaseRules(4, 2, 8, 10.0, 1000),
        secret=SECRET,
        new_id=lambda: b"x" * 16,
        next_index=7,
        returned=[5, 4],
        open_leases=old,
    )
    assert one.running == 3
    assert one.get(old[0].lease_id) == old[0]
    assert grant(one, 1)[0].index == 4


# --- the rule as a whole ------------------------------------------------------------------------


def group(lease: OpenLease, version: int, arrival: int) -> ScoredGroup:
    return ScoredGroup(arrival, lease.lease_id, lease.node, version, [1], [])


class Hub:
    """A hub and its nodes as the book, the buffer and the learner see them, step by step."""

    def __init__(self, rng: random.Random, batch: int, staleness: int, kappa: int) -> None:
        self.rng, self.batch, self.staleness, self.kappa = rng, batch, staleness, kappa
        self.book = book(batch=batch, staleness=staleness, seconds=30.0, rng=rng)
        self.buffer = Buffer()
        self.held = 0
        self.now = 0.0
        self.published = 0
        self.versions = dict.fromkeys(NODES, 0)
        self.lags: Counter[int] = Counter()
        self.stale = 0
        self.arrivals = 0

    @property
    def elsewhere(self) -> int:
        return len(self.buffer) + self.held

    def ask(self, node: bytes) -> list[OpenLease]:
        leases = self.book.grant(
            node,
            self.versions[node],
            self.rng.randint(1, 2 * self.batch),
            elsewhere=self.elsewhere,
            now=self.now,
        )
        assert self.elsewhere + self.book.running <= (self.staleness + 1) * self.batch
        assert all(lease.min_version <= self.versions[node] for lease in leases)
        return leases

    def answer(self, lease: OpenLease) -> None:
        if self.book.get(lease.lease_id) is None:
            return
        self.book.answer(lease.lease_id)
        version = self.rng.randint(lease.min_version, self.versions[lease.node])
        self.arrivals += 1
        self.buffer.add(group(lease, version, self.arrivals))

    def learner_step(self) -> None:
        if self.held:
            self.held = 0
            self.book.version += 1
            if self.book.version % self.kappa == 0:
                self.published = self.book.version
        else:
            taken, stale = self.buffer.take(self.batch, self.book.version, self.staleness)
            self.stale += len(stale)
            if taken is not None:
                self.held = self.batch
                self.lags.update(self.book.version - one.version for one in taken)


shapes = st.tuples(
    st.integers(0, 2**32), st.integers(1, 5), st.integers(0, 5), st.integers(0, 4)
).map(lambda t: (t[0], t[1], t[2], min(max(1, t[3]), max(1, t[2]))))


@given(shapes)
def test_what_is_answered_at_once_is_never_stale(shape: tuple[int, int, int, int]) -> None:
    seed, batch, staleness, kappa = shape
    rng = random.Random(seed)
    hub = Hub(rng, batch, staleness, kappa)
    for _ in range(60):
        if rng.random() < 0.4:
            hub.learner_step()
        node = rng.choice(NODES)
        if rng.random() < 0.5:
            hub.versions[node] = hub.published
        for lease in hub.ask(node):
            hub.answer(lease)
    assert hub.stale == 0
    assert max(hub.lags, default=0) <= staleness


@given(shapes)
def test_any_schedule_keeps_the_bounds_and_never_starves(shape: tuple[int, int, int, int]) -> None:
    seed, batch, staleness, kappa = shape
    rng = random.Random(seed)
    hub = Hub(rng, batch, staleness, kappa)
    out: list[OpenLease] = []
    for _ in range(120):
        hub.now += rng.random() * 2
        action = rng.random()
        node = rng.choice(NODES)
        if action < 0.3:
            out += hub.ask(node)
        elif action < 0.6 and out:
            hub.answer(out.pop(rng.randrange(len(out))))
        elif action < 0.65 and out:
            lease = out.pop()
            hub.book.release([lease.lease_id], lease.node)
        elif action < 0.7:
            out = out[len(out) // 2 :]  # a node died with these
        elif action < 0.8:
            hub.versions[node] = hub.published
        elif action < 0.85:
            hub.book.expire(hub.now)
        else:
            hub.learner_step()
    assert max(hub.lags, default=0) <= staleness

    # from any state: with one honest node left, the learner goes on, version after version
    for goal in range(hub.book.version + 1, hub.book.version + 4):
        for _ in range(200):
            if hub.book.version >= goal:
                break
            hub.now += 1.0
            hub.book.expire(hub.now)
            hub.versions[NODES[0]] = hub.published
            for lease in hub.ask(NODES[0]):
                hub.answer(lease)
            hub.learner_step()
        assert hub.book.version >= goal
