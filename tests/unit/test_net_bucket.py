"""The token bucket: never more than the limit in any ten seconds, and never much less on demand."""

from __future__ import annotations

import random
from bisect import bisect_left
from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from echo_p2p.net import tuning
from echo_p2p.net.bucket import BURST_S, MAX_QUANTUM, Bucket, next_batch, quantum_of
from echo_p2p.rates import LEAST

WINDOW_S = 10.0
RATES = st.sampled_from([LEAST, 250_000, 1_000_000, 2_500_000]) | st.integers(LEAST, 3_000_000)
SEEDS = st.integers(0, 2**32)
Sent = list[tuple[float, int]]


def sends(rate: int, seconds: float, *, late_s: float, pauses: bool, rng: random.Random) -> Sent:
    """Quanta let through one after the other, each task coming up to `late_s` after it may."""
    bucket, quantum, now = Bucket(rate, 0.0), quantum_of(rate), 0.0
    sent = []
    while now < seconds:
        while delay := bucket.delay(now):
            now += delay + rng.random() * late_s
        size = rng.randint(1, quantum)
        bucket.spend(size, now)
        sent.append((now, size))
        if pauses and rng.random() < 0.01:
            now += rng.random() * 2
    return sent


def heaviest(sent: Sent) -> float:
    """Most bytes in any window of ten seconds."""
    times = [at for at, _ in sent]
    sums = [0, *accumulate(size for _, size in sent)]
    return max(
        sums[bisect_left(times, at + WINDOW_S)] - sums[number] for number, at in enumerate(times)
    )


def lightest(sent: Sent) -> float:
    """Fewest bytes in any window of ten seconds that lies within."""
    times = [at for at, _ in sent]
    sums = [0, *accumulate(size for _, size in sent)]
    return min(
        sums[bisect_left(times, at + WINDOW_S)] - sums[number + 1]
        for number, at in enumerate(times)
        if at + WINDOW_S <= times[-1]
    )


@given(RATES, st.booleans(), st.sampled_from([0.0, 0.01, BURST_S, 0.5]), SEEDS)
def test_any_ten_seconds_are_within_the_limit(rate, pauses, late_s, seed):
    sent = sends(rate, 15, late_s=late_s, pauses=pauses, rng=random.Random(seed))
    assert heaviest(sent) <= 1.05 * rate * WINDOW_S


@given(RATES, st.sampled_from([0.0, 0.001, BURST_S / 2]), SEEDS)
def test_with_demand_any_ten_seconds_make_use_of_it(rate, late_s, seed):
    sent = sends(rate, 15, late_s=late_s, pauses=False, rng=random.Random(seed))
    assert lightest(sent) >= 0.95 * rate * WINDOW_S


@given(RATES, st.lists(st.tuples(st.floats(0, 1), st.integers(0, 100_000)), max_size=40))
def test_what_only_counts_is_paid_back_before_anything_waits_no_longer(rate, counted):
    bucket, now, total = Bucket(rate, 0.0), 0.0, 0
    for pause, size in counted:
        now += pause
        bucket.spend(size, now)
        total += size
    now += bucket.delay(now)
    assert total <= rate * (now + BURST_S) + 1
    assert bucket.delay(now + 1e-6) == 0


@given(RATES, st.floats(0, 100), st.integers(1, MAX_QUANTUM))
def test_what_is_given_back_lets_others_go(rate, now, size):
    bucket = Bucket(rate, now)
    bucket.spend(size, now)
    bucket.spend(-size, now)
    assert bucket.delay(now) == 0


def test_a_quantum_takes_a_fiftieth_of_a_second_at_most():
    assert quantum_of(None) == quantum_of(10**9) == MAX_QUANTUM
    assert quantum_of(250_000) == 5000


@given(st.lists(st.booleans(), max_size=30))
def test_a_batch_follows_the_link_within_its_bounds(slow):
    batch = tuning.LEAST_BATCH_BYTES
    for one in slow:
        following = next_batch(batch, slow=one)
        assert tuning.LEAST_BATCH_BYTES <= following <= tuning.MOST_BATCH_BYTES
        assert following <= batch if one else following >= batch
        batch = following
    for _ in range(4):
        batch = next_batch(batch, slow=False)
    assert batch == tuning.MOST_BATCH_BYTES
