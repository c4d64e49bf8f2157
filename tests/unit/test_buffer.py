"""The buffer: nothing stale out, nothing twice, nothing lost."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo_hub.learner.messages import Trained, TrainRollout
from echo_hub.learner.penalties import all_alike
from echo_hub.loop import metrics_of_all
from echo_hub.rollouts.buffer import Buffer, ScoredGroup


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


def test_blank_groups_are_in_no_batch_and_leave_beside_the_next_update() -> None:
    buffer = Buffer(most_blank=2)
    for number, version in enumerate((3, 1, 3, 3)):
        buffer.add(group(number, version), blank=number != 2)
    assert len(buffer) == 2  # the fourth is blank too, and one more than may be kept apart
    batch, stale = buffer.take(2, 3, 1)
    assert (ids(batch), stale) == ([2, 3], [])
    blank, stale = buffer.take_blank(3, 1)
    assert (ids(blank), ids(stale)) == ([0], [1])
    assert buffer.take_blank(3, 1) == ([], [])
    buffer.add(group(4, 3), blank=True)
    assert ids(buffer.evict(bytes([0]) * 32)) == [4]


def test_without_such_a_limit_a_blank_group_is_like_any_other() -> None:
    buffer = Buffer()
    buffer.add(group(0, 0), blank=True)
    assert ids(buffer.take(1, 0, 0)[0]) == [0]


def test_what_an_update_leaves_out_counts_in_its_mean_reward() -> None:
    used, left_out = group(0, 0), group(1, 0)
    worth = [TrainRollout(tokens=[1], logprobs=[-0.5], reward=reward) for reward in (0.0, 1.0)]
    used = replace(used, rollouts=worth)
    trained = Trained(version=1, metrics={"reward_mean": 0.5, "reward_std": 0.5, "loss": 2.0})
    found = metrics_of_all(trained, [used], [left_out])
    assert found["reward_mean"] == pytest.approx(2 / 3)
    assert (found["dropped_groups"], found["loss"]) == (1.0, 2.0)


@pytest.mark.parametrize(
    ("rewards", "lengths", "tolerance", "alike"),
    [
        ((1.0, 1.0), (3, 9), 0, True),
        ((1.0, 0.5), (3, 3), 0, False),
        ((1.0, 1.0), (3, 9), 4, False),
        ((1.0, 1.0), (3, 5), 4, True),
    ],
)
def test_a_group_is_blank_if_all_its_answers_are_worth_the_same(
    rewards: tuple[float, ...], lengths: tuple[int, ...], tolerance: int, alike: bool
) -> None:
    rollouts = [
        TrainRollout([1] * (length + 2), [0.0] * (length + 2), reward, [(0, 2)])
        for reward, length in zip(rewards, lengths, strict=True)
    ]
    assert all_alike(rollouts, limit=10, tolerance=tolerance) is alike


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
