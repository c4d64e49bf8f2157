"""What the hub gives, to whom, and that it stays bounded whatever nodes ask."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from echo_p2p.artifact import bitmap
from echo_p2p.swarm.scatter import (
    BUDGET,
    FRESH,
    FRESH_LATER,
    INSIST,
    SLACK,
    SPARE,
    STALE_S,
    TRICKLE_S,
    Scatter,
)


def ask(
    hub: Scatter,
    asker: str,
    lacks: int,
    *,
    insist: bool = False,
    backlog_s: float | None = 0.0,
    now: float = 0.0,
) -> int | None:
    if hub.rank(asker, lacks, insist=insist, backlog_s=backlog_s, now=now) is None:
        return None
    return hub.pick(asker, lacks, insist=insist, now=now)


def test_a_chunk_goes_to_one_node() -> None:
    hub = Scatter(3)
    assert sorted(i for i in (ask(hub, n, 0b111) for n in "abc") if i is not None) == [0, 1, 2]
    assert ask(hub, "a", 0b111) is None


def test_what_a_lost_node_was_given_is_given_again() -> None:
    hub = Scatter(1)
    assert ask(hub, "a", 0b1) == 0
    assert ask(hub, "b", 0b1) is None
    hub.keep_only(frozenset("b"))
    assert ask(hub, "b", 0b1) == 0


def test_a_node_that_lost_what_it_was_given_gets_it_again() -> None:
    hub = Scatter(16)
    everything = bitmap.full(16)
    first = [ask(hub, "a", everything) for _ in range(16)]
    assert sorted(i for i in first if i is not None) == list(range(16))
    assert ask(hub, "a", everything) == 0


def test_a_node_that_passes_nothing_on_gets_no_first_copy_while_others_do() -> None:
    hub = Scatter(4)
    assert ask(hub, "leaf", 0b1111, backlog_s=None) == 0
    got = [ask(hub, "a", 0b1111) for _ in range(4)]
    assert sorted(i for i in got if i is not None) == [0, 1, 2, 3], "the leaf's copy is no source"
    assert ask(hub, "leaf", 0b1110, backlog_s=None) is None
    assert ask(hub, "leaf", 0b1110, backlog_s=None, insist=True) is not None


def test_nodes_that_can_pass_it_on_soon_come_first() -> None:
    hub = Scatter(4)
    for backlog_s, rank in [(0.0, FRESH), (60.0, FRESH_LATER), (None, FRESH_LATER)]:
        fresh = Scatter(4)
        assert fresh.rank("a", 0b1, insist=False, backlog_s=backlog_s, now=0.0) == rank
    ask(hub, "a", 0b1)
    assert hub.rank("b", 0b1, insist=True, backlog_s=0.0, now=0.0) == INSIST
    assert hub.rank("b", 0b1, insist=False, backlog_s=0.0, now=STALE_S) == SPARE


def test_a_chunk_that_nobody_passed_on_is_given_again_after_a_while() -> None:
    hub = Scatter(1)
    assert ask(hub, "stopped", 0b1) == 0
    assert ask(hub, "b", 0b1, now=0.5 * STALE_S) is None
    assert ask(hub, "b", 0b1, now=STALE_S) == 0
    assert ask(hub, "c", 0b1, now=STALE_S) is None


def test_insisting_nodes_get_different_chunks() -> None:
    hub = Scatter(8)
    for _ in range(8):
        ask(hub, "a", bitmap.full(8))
    picks = [ask(hub, name, bitmap.full(8), insist=True) for name in "bcdefghi"]
    assert sorted(i for i in picks if i is not None) == list(range(8))


def test_an_insisting_node_is_never_refused_for_ever() -> None:
    hub, count = Scatter(4), 0
    for _ in range(100):
        count += ask(hub, "a", 0b1111, insist=True) is not None
    assert count <= 4 + 4 + SLACK
    assert ask(hub, "a", 0b1111, insist=True) is None
    assert ask(hub, "a", 0b1111, insist=True, now=TRICKLE_S) is not None
    assert ask(hub, "a", 0b1111, insist=True, now=TRICKLE_S) is None


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    count=st.integers(1, 40),
    keys=st.integers(1, 12),
    insisting=st.integers(0, 3),
)
def test_hostile_takers_get_no_more_than_the_bound(
    seed: int, count: int, keys: int, insisting: int
) -> None:
    """They ask for anything, in every way, come back after leaving, and lie."""
    rng, hub = random.Random(seed), Scatter(count)
    now, names = 0.0, [f"key{i}" for i in range(keys)]
    for _ in range(60 * count):
        now += rng.random() * 0.01
        asker = rng.choice(names)
        if rng.random() < 0.5:
            hub.spare(asker, rng.randrange(count), now=now)
        else:
            may_insist = names.index(asker) < insisting
            backlog_s = rng.choice([0.0, 100.0, None])
            lacks = rng.getrandbits(count)
            ask(hub, asker, lacks, insist=may_insist, backlog_s=backlog_s, now=now)
        if rng.random() < 0.2:
            hub.keep_only(frozenset(rng.sample(names, rng.randrange(keys))))
    allowance = count + SLACK + now / TRICKLE_S
    assert hub.sent <= BUDGET * count + 1 + min(insisting, keys) * allowance
