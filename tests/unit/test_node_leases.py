"""What a node does with its leases: every case, and that no lease is lost or answered wrongly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo_node.leases import Plan, fault_of, groups_wanted, plan
from echo_p2p.wire import Lease, RunDescription, Sampling, pack_tokens

NODE = b"n" * 32
RUN = RunDescription(
    run_id="r",
    task="t",
    base=bytes(32),
    group_size=4,
    staleness=2,
    vocab_size=50,
    context=20,
    dtype="float32",
    created_at=0.0,
    environments=("guess-number/1",),
)


def lease(
    number: int,
    minimum: int = 0,
    maximum: int | None = None,
    *,
    expires: float = 100.0,
    size: int = 4,
) -> Lease:
    return Lease(
        run_id="r",
        lease_id=number.to_bytes(16, "big"),
        node=NODE,
        prompt=pack_tokens([1, 2]),
        group_size=size,
        seed=number,
        sampling=Sampling(temperature=1.0, max_new_tokens=8, stop=(1,)),
        min_version=minimum,
        max_version=maximum,
        issued_at=0.0,
        expires_at=expires,
        turns=None,
    )


def numbers(leases: tuple[Lease, ...]) -> list[int]:
    return [one.seed for one in leases]


def decide(
    held: list[Lease], active: int | None, newest: int | None, *, now: float = 0.0, room: int = 8
) -> Plan:
    return plan(held, active=active, newest=newest, now=now, room=room)


def test_before_the_first_version_leases_wait() -> None:
    todo = decide([lease(1), lease(2, expires=0)], None, None)
    assert (todo.version, numbers(todo.kept), numbers(todo.expired)) == (None, [1], [2])


def test_the_newest_version_answers_what_expires_first() -> None:
    todo = decide([lease(1, expires=30), lease(2, expires=10), lease(3, expires=20)], 5, 5)
    assert (todo.version, numbers(todo.batch), numbers(todo.kept)) == (5, [2, 3], [1])


def test_a_lease_that_the_newest_is_too_new_for_goes_first() -> None:
    todo = decide([lease(1), lease(2, 4, 4, size=1)], 4, 5)
    assert (todo.version, numbers(todo.batch), numbers(todo.kept)) == (4, [2], [1])
    after = decide(list(todo.kept), 4, 5)
    assert (after.version, numbers(after.batch)) == (5, [1])


def test_a_lease_for_a_version_to_come_waits() -> None:
    todo = decide([lease(1, 7), lease(2, 6, 9)], 5, 5)
    assert (todo.batch, numbers(todo.kept)) == ((), [1, 2])


def test_what_no_version_can_answer_any_more_goes_back() -> None:
    assert numbers(decide([lease(1, 3, 4)], 5, 5).hopeless) == [1]
    assert numbers(decide([lease(1, 6, 6)], 5, 7).hopeless) == [1]  # 6 was never here
    assert numbers(decide([lease(1, 3, 4)], None, 5).hopeless) == [1]


def test_a_lease_is_begun_when_one_of_its_answers_has_room() -> None:
    for room, begun in ((-2, 0), (0, 0), (1, 1), (4, 1), (5, 2)):
        todo = decide([lease(1), lease(2)], 1, 1, room=room)
        assert numbers(todo.batch) == [1, 2][:begun]
        assert numbers(todo.kept) == [1, 2][begun:]


def test_what_the_newest_is_too_new_for_keeps_it_waiting_until_there_is_room() -> None:
    todo = decide([lease(1), lease(2, 4, 4)], 4, 5, room=0)
    assert (todo.version, todo.batch, numbers(todo.kept)) == (4, (), [1, 2])


leases = st.builds(
    lambda number, minimum, span, expires, size: lease(
        number, minimum, None if span is None else minimum + span, expires=expires, size=size
    ),
    st.integers(0, 10**6),
    st.integers(0, 8),
    st.none() | st.integers(0, 3),
    st.floats(0, 20),
    st.integers(1, 6),
)


@given(
    st.lists(leases, max_size=20, unique_by=lambda one: one.lease_id),
    st.integers(0, 6),
    st.integers(0, 3),
    st.integers(1, 12),
)
def test_no_lease_is_lost_doubled_or_answered_outside_its_window(
    held: list[Lease], active: int, ahead: int, room: int
) -> None:
    newest = active + ahead
    todo = plan(held, active=active, newest=newest, now=10.0, room=room)
    parts = [*todo.batch, *todo.kept, *todo.expired, *todo.hopeless]
    assert sorted(one.lease_id for one in parts) == sorted(one.lease_id for one in held)
    assert todo.version in (active, newest)
    for one in todo.batch:
        assert one.expires_at > 10.0
        assert one.min_version <= todo.version
        assert one.max_version is None or todo.version <= one.max_version
    assert sum(one.group_size for one in todo.batch[:-1]) < room
    # going on like this ends: what is kept is either answered later or waits for a newer version
    held = list(todo.kept)
    for _ in range(25):
        todo = plan(held, active=todo.version, newest=newest, now=10.0, room=room)
        held = list(todo.kept)
    assert all(one.min_version > newest for one in held)


def test_as_many_are_held_ahead_as_the_engine_may_find_room_for() -> None:
    assert groups_wanted([], group_size=8, capacity=64) == 8
    assert groups_wanted([lease(1)] * 3, group_size=8, capacity=20) == 1
    assert groups_wanted([lease(1)] * 5, group_size=8, capacity=20) == 0
    assert groups_wanted([], group_size=8, capacity=3) == 1


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({}, ""),
        ({"run_id": "other"}, "of run other"),
        ({"node": b"m" * 32}, "another node's"),
        ({"expires_at": 5.0}, "expired 5 s ago"),
        ({"group_size": 5}, "wants 5 answers"),
        ({"prompt": b""}, "prompt is empty"),
        ({"prompt": b"abc"}, "multiple of 4"),
        ({"prompt": pack_tokens([50])}, "outside the vocabulary"),
        ({"prompt": pack_tokens([1] * 13)}, "may have 21 tokens"),
        ({"min_version": 3, "max_version": 2}, "no version fits"),
    ],
)
def test_a_lease_is_checked_before_it_is_taken(change: dict[str, object], complaint: str) -> None:
    import msgspec

    faulty = msgspec.structs.replace(lease(1), **change)
    fault = fault_of(faulty, RUN, node=NODE, now=10.0)
    assert complaint in fault
    assert bool(complaint) == bool(fault)
