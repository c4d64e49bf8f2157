"""The queue of an uplink: order, fairness, how many at a time; in simulated time."""

from __future__ import annotations

import heapq
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from echo_p2p.swarm.uploads import LEAST, MOST, MOST_BYTES, Uploads

SIZE = 1 << 19


def uploads_with(*askers: str, rank: int = 0, rtt_s: float = 0.0) -> tuple[Uploads, list[int]]:
    queue = Uploads()
    return queue, [queue.ask(name, rank=rank, size=SIZE, rtt_s=rtt_s) for name in askers]


def test_few_are_served_at_a_time_and_the_next_when_one_has_left() -> None:
    queue, tickets = uploads_with("a", "b", "c", "d")
    assert queue.start(0.0) == tickets[:LEAST]
    assert queue.start(0.1) == []
    queue.end(tickets[1], 0.1, sent=True)
    assert queue.start(0.1) == [tickets[2]]


def test_receivers_that_do_not_read_keep_nobody_out() -> None:
    queue, deaf = uploads_with(*map(str, range(MOST)))
    now, started = 0.0, queue.start(0.0)
    while len(started) < MOST:
        assert queue.cut(now) == []
        now += 10.0  # these are late, so others have their places
        started += queue.start(now)
    other = queue.ask("other", rank=0, size=SIZE, rtt_s=0.0)
    now += 10.0
    assert queue.start(now) == []
    (cut,) = queue.cut(now)
    assert cut in deaf
    queue.end(cut, now, sent=False)
    assert queue.start(now) == [other]
    assert queue.cut(now) == []  # nobody waits


def test_what_is_held_in_memory_is_bounded() -> None:
    queue = Uploads()
    for name in map(str, range(MOST)):
        queue.ask(name, rank=0, size=MOST_BYTES // 4, rtt_s=0.0)
    started = queue.start(0.0)
    for now in range(10, 100, 10):
        started += queue.start(float(now))
    assert len(started) == 4


def test_one_asker_is_served_one_at_a_time() -> None:
    queue, tickets = uploads_with("a", "a", "b")
    assert queue.start(0.0) == [tickets[0], tickets[2]]
    queue.end(tickets[0], 0.1, sent=True)
    assert queue.start(0.1) == [tickets[1]]


def test_a_lower_rank_goes_first() -> None:
    queue, _ = uploads_with("a", "b", rank=2)
    urgent = [queue.ask(name, rank=0, size=SIZE, rtt_s=0.0) for name in "cd"]
    assert queue.start(0.0) == urgent
    assert (queue.waiting(0), queue.waiting(2)) == (0, 2)


def test_askers_share_fairly() -> None:
    queue = Uploads()
    for name in ["greedy"] * 20 + ["a", "b"]:
        queue.ask(name, rank=0, size=SIZE, rtt_s=0.0)
    started, now = queue.start(0.0), 0.0
    order = list(started)
    while started:
        now += 0.1
        queue.end(started.pop(0), now, sent=True)
        new = queue.start(now)
        started += new
        order += new
    assert {21, 22} <= set(order[:4])
    assert len(order) == 22


def test_long_round_trips_are_filled_with_more_at_a_time() -> None:
    near, _ = uploads_with(*map(str, range(40)))
    far, _ = uploads_with(*map(str, range(40)), rtt_s=0.15)
    assert len(near.start(0.0)) == LEAST
    assert 8 < len(far.start(0.0)) <= MOST


def test_a_stopped_receiver_holds_its_place_only_for_a_while() -> None:
    queue, tickets = uploads_with("stopped", "too", "a", "b")
    assert queue.start(0.0) == tickets[:2]
    wake = queue.wake_at(0.0)
    assert wake is not None
    assert queue.start(wake) == tickets[2:]


def test_who_leaves_the_queue_is_forgotten() -> None:
    queue, tickets = uploads_with("a", "b", "c", "d")
    queue.start(0.0)
    queue.end(tickets[2], 0.0, sent=False)
    queue.end(tickets[2], 0.0, sent=False)
    queue.end(tickets[0], 0.0, sent=False)
    assert queue.start(0.0) == [tickets[3]]


def test_the_backlog_is_what_waits_by_what_one_takes() -> None:
    queue, tickets = uploads_with("a", "b")
    assert queue.backlog_s(0.0) == 0.0
    queue.start(0.0)
    for ticket in tickets:
        queue.end(ticket, 1.0, sent=True)
    for name in "abcdef":
        queue.ask(name, rank=0, size=SIZE, rtt_s=0.0)
    queue.start(1.0)
    assert queue.backlog_s(1.0) == 2.0


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    askers=st.integers(1, 12),
    receiver=st.sampled_from([0.1, 0.5, 2.0]),
)
def test_every_request_is_served_and_slow_receivers_do_not_idle_the_uplink(
    seed: int, askers: int, receiver: float
) -> None:
    """An uplink of 10 chunks/s, receivers of `receiver` chunks/s each; some give up waiting."""
    rng, queue = random.Random(seed), Uploads()
    total = 120
    waiting = {
        queue.ask(str(i % askers), rank=rng.choice([0, 0, 2]), size=SIZE, rtt_s=0.0)
        for i in range(total)
    }
    for ticket in rng.sample(sorted(waiting), 10):
        queue.end(ticket, 0.0, sent=False)
        waiting.discard(ticket)
    now, active = 0.0, list[tuple[float, int]]()
    served = 0
    while waiting or active:
        for ticket in queue.start(now):
            waiting.discard(ticket)
            pace = min(receiver, 10 / (len(active) + 1))
            heapq.heappush(active, (now + 1 / pace, ticket))
        assert len(active) <= MOST
        wake = queue.wake_at(now)
        assert wake is None or wake > now
        if wake is not None and (not active or wake < active[0][0]):
            now = wake
            continue
        assert active, "requests wait and nobody is served"
        now, ticket = heapq.heappop(active)
        queue.end(ticket, now, sent=True)
        served += 1
    assert served == total - 10
