"""What holds an update back when its rollouts are old: step size, alignment, clip bounds."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from learner_support import load_policy, make_config, scored, seeded_groups
from pydantic import ValidationError

from echo_hub.learner.adaptive_clip import (
    LOWER,
    SHARE,
    UPPER,
    balanced_bounds,
    positive_share,
)
from echo_hub.learner.alignment import excess
from echo_hub.learner.measures import cosine
from echo_hub.learner.messages import TrainGroup
from echo_hub.learner.schedule import coupling, reliability, warmup
from echo_hub.learner.trainer import Trainer

VECTORS = st.lists(st.floats(-10, 10, width=32), min_size=5, max_size=5)


def split(values: list[float]) -> list[torch.Tensor]:
    """A gradient of two weights, of 2 and 3 elements."""
    tensor = torch.tensor(values, dtype=torch.float32)
    return [tensor[:2].clone(), tensor[2:].reshape(3, 1).clone()]


def norm(gradient: list[torch.Tensor]) -> float:
    return math.sqrt(sum(float(t.double().square().sum()) for t in gradient))


# --- step size ------------------------------------------------------------------------------------


def test_step_sizes_by_hand():
    assert coupling(0.0, 0.5) == 1.0
    assert coupling(6.0, 0.5) == 0.25
    assert coupling(6.0, 0.0) == 1.0
    assert reliability(0.25) == 0.5
    assert [warmup(update, 4) for update in (1, 2, 4, 9)] == [0.25, 0.5, 1.0, 1.0]
    assert warmup(1, 0) == 1.0


@settings(max_examples=50)
@given(st.floats(0, 100), st.floats(0, 100), st.floats(0.01, 10))
def test_an_older_batch_never_takes_a_longer_step(lag: float, more: float, c: float):
    assert 0.0 < coupling(lag + more, c) <= coupling(lag, c) <= 1.0
    assert coupling(lag, c) * lag < 1.0 / c  # how far the policy moves within the lag is bounded


# --- alignment ------------------------------------------------------------------------------------


def held_back(
    gradient: list[torch.Tensor], previous: list[torch.Tensor], limit: float
) -> list[torch.Tensor]:
    times = excess(gradient, previous, limit)
    return [a - times * b for a, b in zip(gradient, previous, strict=True)]


def flat(gradient: list[torch.Tensor]) -> list[float]:
    return torch.cat([tensor.flatten() for tensor in gradient]).tolist()


def test_held_back_by_hand():
    previous = split([2, 0, 0, 0, 0])
    assert excess(split([3, 0, 4, 0, 0]), previous, 0.6) == 0.0  # their cosine
    assert flat(held_back(split([3, 0, 4, 0, 0]), previous, 0.0)) == pytest.approx([0, 0, 4, 0, 0])
    # cosine 0.8; at 0.6 the part along is 3/4 of that across
    assert flat(held_back(split([4, 0, 3, 0, 0]), previous, 0.6)) == pytest.approx(
        [2.25, 0, 3, 0, 0]
    )
    assert excess(split([-3, 0, 4, 0, 0]), previous, 0.0) == 0.0
    assert excess(split([3, 0, 4, 0, 0]), split([0, 0, 0, 0, 0]), 0.0) == 0.0
    assert excess(split([3, 0, 0, 0, 0]), previous, 1.0) == 0.0


@settings(deadline=None, max_examples=50)
@given(VECTORS, VECTORS, st.floats(0, 0.95))
def test_gradients_held_back(one: list[float], other: list[float], limit: float):
    gradient, previous = split(one), split(other)
    before, last = norm(gradient), norm(previous)
    held = held_back(gradient, previous, limit)
    assert norm(held) <= before * (1 + 1e-6)
    dot = cosine(held, previous) * norm(held) * last
    slack = 1e-5 * before * last
    assert dot <= limit * norm(held) * last + slack
    if cosine(gradient, previous) > limit:  # no more than needed, and nothing but what lies along
        assert dot >= limit * norm(held) * last - slack


# --- clip bounds ----------------------------------------------------------------------------------


def test_balanced_bounds_by_hand():
    advantages = torch.tensor([1.0, -1.0])
    # at (0.6, 1.2) the share is 1.2 / (1.2 + 3.0) = 0.29; 0.4 needs an upper bound of 2.0
    ratio = torch.tensor([5.0, 3.0])
    assert positive_share(ratio, advantages, (0.6, 1.2)) == pytest.approx(1.2 / 4.2)
    low, high = balanced_bounds(ratio, advantages)
    assert (low, high) == pytest.approx((0.6, 2.0))
    assert positive_share(ratio, advantages, (low, high)) == pytest.approx(SHARE)


def test_fresh_rollouts_keep_the_first_bounds():
    ratio = torch.ones(4)
    assert balanced_bounds(ratio, torch.tensor([1.0, -1.0, 1.0, -1.0])) == (LOWER[0], UPPER[0])
    assert positive_share(ratio, torch.zeros(4), (0.6, 1.2)) == 1.0


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.tuples(st.floats(0.01, 20), st.floats(-1, 1)), min_size=1, max_size=20),
)
def test_bounds_stay_in_their_range(tokens: list[tuple[float, float]]):
    ratio, advantages = torch.tensor(tokens).T
    low, high = balanced_bounds(ratio, advantages)
    assert LOWER[0] <= low <= LOWER[1]
    assert UPPER[0] <= high <= UPPER[1]
    reached = positive_share(ratio, advantages, (low, high)) >= SHARE
    assert reached or (low, high) == (LOWER[1], UPPER[1])


# --- an update ------------------------------------------------------------------------------------


def trainer(**learner: Any) -> Trainer:
    config = make_config(learner={"staleness": 8, **learner})
    return Trainer(load_policy(config), config)


@pytest.fixture(scope="module")
def batches() -> list[list[TrainGroup]]:
    """Three updates' groups, all sampled from version 0."""
    policy = load_policy(make_config())
    rng = random.Random(5)
    return [[scored(group, 0) for group in seeded_groups(policy, rng, 3)] for _ in range(3)]


def test_an_older_batch_takes_a_shorter_step(batches: list[list[TrainGroup]], tmp_path: Path):
    one = trainer(rate_coupling=0.5, warmup_updates=2, learning_rate=1e-3)
    rates = [
        one.train(groups, tmp_path / f"v{i}")["learning_rate"] for i, groups in enumerate(batches)
    ]
    assert rates == pytest.approx([0.5e-3, 1e-3 / 1.5, 1e-3 / 2])


def test_the_step_is_as_long_as_the_rate_says(batches: list[list[TrainGroup]], tmp_path: Path):
    """AdamW's first step moves every weight that has a gradient by the step size."""
    one = trainer(warmup_updates=10, learning_rate=1e-3)
    before = {name: weight.detach().clone() for name, weight in one.policy.weights.items()}
    one.train(batches[0], tmp_path / "v1")
    moved = max(
        float((w.detach() - before[name]).abs().max()) for name, w in one.policy.weights.items()
    )
    assert moved == pytest.approx(1e-4, rel=1e-3)


def test_held_back_and_resumed(batches: list[list[TrainGroup]], tmp_path: Path):
    settings = {"alignment_limit": 0.0, "balanced_clip": True, "rate_by_ess": True}
    straight = trainer(**settings)
    for i, groups in enumerate(batches[:2]):
        straight.train(groups, tmp_path / f"a{i}")
    resumed = trainer(**settings)
    resumed.resume(tmp_path / "a0")
    metrics = resumed.train(batches[1], tmp_path / "b1")
    assert metrics["grad_cosine"] > 0.0  # both batches are of version 0: there is much to take off
    assert metrics["learning_rate"] < 1e-3
    for name, weight in straight.policy.weights.items():
        assert torch.equal(weight, resumed.policy.weights[name])
    free = trainer(**settings | {"alignment_limit": 1.0})
    free.resume(tmp_path / "a0")
    free.train(batches[1], tmp_path / "c1")
    assert any(
        not torch.equal(weight, free.policy.weights[name])
        for name, weight in straight.policy.weights.items()
    )


def test_balanced_bounds_are_those_of_the_whole_update(
    batches: list[list[TrainGroup]], tmp_path: Path
):
    first = trainer(balanced_clip=True, learning_rate=1e-2)  # far enough for ratios to be clipped
    first.train(batches[0], tmp_path / "v1")
    found = []
    for tokens in (8192, 100):
        one = trainer(balanced_clip=True, microbatch_tokens=tokens)
        one.resume(tmp_path / "v1")
        found.append(one.train(batches[1], tmp_path / f"m{tokens}"))
    for name in ("loss", "grad_norm", "clip_fraction"):
        assert found[0][name] == pytest.approx(found[1][name], abs=1e-6)
    assert found[0]["clip_fraction"] > 0.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"correction": "tis"}, "ratios to the node's"), ({"loss": "cispo"}, "does not clip tokens")],
)
def test_what_does_not_go_with_balanced_bounds(settings: dict[str, Any], message: str):
    with pytest.raises(ValidationError, match=message):
        make_config(learner={"balanced_clip": True, **settings})
