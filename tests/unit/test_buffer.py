"""The buffer: nothing stale out, nothing twice, nothing lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from echo_hub.buffer import Buffer, ScoredGroup
from echo_hub.learner.messages import TrainRollout


def group(number: int, version: int, node: int = 0) -> ScoredGroup:
    rollouts = [TrainRollout(tokens=[1], logprobs=[-0.5], reward=1.0)]
    return ScoredGroup(number, bytes(16), bytes([node]) * 32, version, [1], rollouts)


def filled(*versions: int) -> Buffer:
    buffer = Buffer()
    for number, version in enumerate(versions):
        buffer.add(group(number, version))
    return buffer


def ids(groups: list[ScoredGroup] | None) -> list[int] | None:
    return None if groups is None else [one.group_id for one in groups]


def test_the_stalest_go_first_then_the_earliest() -> None:
    batch, stale = filled(2, 1, 2, 1).take(3, 2, 2)
    assert ids(batch) == [1, 3, 0]
    assert stale == []


def test_lag_is_judged_when_the_batch_is_taken() -> None:
    buffer = filled(1, 2, 3)
    batch, stale = buffer.take(2, 4, 2)
    assert ids(batch) == [1, 2]
    assert ids(stale) == [0]
    assert len(buffer) == 0


def test_too_few_leave_the_buffer_as_it_is_but_for_the_stale() -> None:
    buffer = filled(0, 5)
    batch, stale = buffer.take(2, 5, 1)
    assert batch is None
    assert ids(stale) == [0]
    assert buffer.versions() == {5: 1}


def test_a_nodes_groups_can_be_evicted() -> None:
    buffer = Buffer()
    for number in range(4):
        buffer.add(group(number, number, node=number % 2))
    assert ids(buffer.evict(bytes([1]) * 32)) == [1, 3]
    assert len(buffer) == 2


def test_the_learner_is_sent_what_it_needs() -> None:
    sent = group(7, 3).for_learner()
    assert (sent.version, sent.prompt, sent.rollouts[0].reward) == (3, [1], 1.0)


@given(
    st.integers(0, 4),
    st.integers(1, 4),
    st.lists(st.one_of(st.integers(0, 6), st.sampled_from(["take", "evict"])), max_size=80),
)
def test_every_group_leaves_once_and_none_is_taken_stale(
    staleness: int, count: int, steps: list[int | str]
) -> None:
    buffer, version = Buffer(), 0
    added: list[int] = []
    left: list[int] = []
    for step in steps:
        if step == "take":
            batch, stale = buffer.take(count, version, staleness)
            assert all(version - one.version > staleness for one in stale)
            assert all(version - one.version <= staleness for one in batch or [])
            assert batch is None or len(batch) == count
            left += [one.group_id for one in [*(batch or []), *stale]]
            version += batch is not None
        elif step == "evict":
            left += [one.group_id for one in buffer.evict(bytes([1]) * 32)]
        else:
            assert isinstance(step, int)
            added.append(len(added))
            buffer.add(group(added[-1], max(0, version - step), node=step % 2))
    rest, stale = buffer.take(len(buffer), version, 10**6)
    left += [one.group_id for one in rest or []]
    assert stale == []
    assert sorted(left) == added
