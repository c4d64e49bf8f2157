"""Whole updates with each objective: what is computed for it, and what must not change it."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from learner_support import load_policy, make_config, scored, seeded_groups

from echo_hub.learner.messages import TrainGroup
from echo_hub.learner.policy import Policy
from echo_hub.learner.samples import make_batch
from echo_hub.learner.trainer import Trainer
from echo_p2p.errors import LearnerError

OBJECTIVES: dict[str, dict[str, Any]] = {
    "gspo": {"loss": "gspo", "clip": (3e-4, 4e-4), "kl": 0.1},
    "cispo": {"loss": "cispo", "advantage": "rloo", "entropy_bonus": 0.01},
    "mis": {"loss": "dapo", "correction": "mis", "steps_per_update": 2},
    "a3po": {"correction": "decoupled", "proximal": "loglinear"},
    "ppo": {"loss": "ppo", "advantage": "gae", "steps_per_update": 2},
    "vtrace": {"loss": "ppo", "advantage": "vtrace", "correction": "tis"},
    "dpo": {"loss": "dpo"},
}


COMPUTED = {"gspo": {"kl_reference"}, "ppo": {"value_error"}, "vtrace": {"value_error"}}

SMALL = {"staleness": 8, "rank": 2, "target_modules": ("q_proj",)}


@pytest.fixture(scope="module")
def policy() -> Policy:
    return load_policy(make_config(learner=SMALL))


@pytest.fixture(scope="module")
def fresh(policy: Policy) -> Callable[..., Trainer]:
    """Makes a trainer that begins anew; the one made before it is over."""
    first = {name: weight.detach().clone() for name, weight in policy.weights.items()}

    def make(**learner: Any) -> Trainer:
        policy.assign(first)
        return Trainer(policy, make_config(learner={**SMALL, **learner}))

    return make


@pytest.fixture(scope="module")
def batches(policy: Policy) -> list[list[TrainGroup]]:
    """Three updates' groups, all sampled from version 0; each group has right and wrong answers."""
    rng = random.Random(5)
    found: list[TrainGroup] = []
    while len(found) < 6:
        for sampled in seeded_groups(policy, rng, 4, group_size=4):
            group = scored(sampled, 0)
            if len({rollout.reward for rollout in group.rollouts}) == 2:
                found.append(group)
    return [found[:2], found[2:4], found[4:6]]


def files(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*") if f.is_file()}


def without_seconds(metrics: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if name not in ("seconds", "padding")}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_an_update_is_resumed_exactly_and_cut_as_one_likes(
    name: str, fresh: Callable[..., Trainer], batches: list[list[TrainGroup]], tmp_path: Path
) -> None:
    trainer = fresh(**OBJECTIVES[name])
    before = trainer.state.copy()
    whole = [trainer.train(batches[i], tmp_path / f"a{i}") for i in range(2)]
    assert whole[1]["grad_norm"] > 0
    after = trainer.state.copy().tensors
    assert all(not after[n].equal(before.tensors[n]) for n in trainer.policy.weights)
    assert whole[0].keys() >= {"entropy", "grad_cosine", "lag_0", "mismatch_kl", "ess"}
    computed = whole[0].keys() & {"kl_reference", "value_error"}
    assert computed == COMPUTED.get(name, set())

    trainer.resume(tmp_path / "a0")
    trainer.train(batches[1], tmp_path / "c1")
    assert files(tmp_path / "c1") == files(tmp_path / "a1")

    trainer = fresh(**OBJECTIVES[name], microbatch_tokens=90)
    for i in range(2):
        metrics = trainer.train(batches[i], tmp_path / f"b{i}")
        assert without_seconds(metrics) == pytest.approx(without_seconds(whole[i]), abs=2e-5)


def test_a_value_head_learns_and_is_never_published(
    fresh: Callable[..., Trainer], batches: list[list[TrainGroup]], tmp_path: Path
) -> None:
    trainer = fresh(**OBJECTIVES["ppo"], value_learning_rate=0.05)
    errors = [
        trainer.train(batches[0], tmp_path / str(number))["value_error"] for number in range(6)
    ]
    assert errors[-1] < 0.7 * errors[0]
    adapter = (tmp_path / "5" / "adapter" / "adapter_model.safetensors").read_bytes()
    assert b"value." not in adapter
    assert b"extra.value.weight" in (tmp_path / "5" / "state.safetensors").read_bytes()


def test_the_reference_is_the_base_whatever_the_adapter(
    fresh: Callable[..., Trainer], batches: list[list[TrainGroup]], tmp_path: Path
) -> None:
    asked = [(g.prompt, r.tokens) for g in batches[0] for r in g.rollouts]
    trainer = fresh(learning_rate=0.1)
    with torch.no_grad():
        base = trainer.policy.logprobs(asked)  # a fresh adapter changes nothing
    trainer.train(batches[0], tmp_path / "v1")
    with torch.no_grad():
        assert not torch.allclose(trainer.policy.logprobs(asked), base, atol=1e-3)
        with trainer.policy.reference():
            torch.testing.assert_close(trainer.policy.logprobs(asked), base, atol=1e-5, rtol=0)
    assert all(weight.requires_grad for weight in trainer.policy.weights.values())


def test_gradients_of_consecutive_updates_are_compared(
    fresh: Callable[..., Trainer], batches: list[list[TrainGroup]], tmp_path: Path
) -> None:
    trainer = fresh(learning_rate=1e-6)
    cosines = [
        trainer.train(groups, tmp_path / str(number))["grad_cosine"]
        for number, groups in enumerate((batches[0], batches[0], batches[1]))
    ]
    assert cosines[0] == 0.0
    assert cosines[1] == pytest.approx(1.0, abs=1e-3)
    assert abs(cosines[2]) < 0.9


# --- what an environment wrote ------------------------------------------------------------------


def observing(groups: list[TrainGroup], spans: list[tuple[int, int]], noise: float,
              ) -> list[TrainGroup]:  # fmt: skip
    """The groups as if the environment had written these spans of every answer."""

    def change(rollout: Any) -> Any:
        logprobs = list(rollout.logprobs)
        for start, end in spans:
            logprobs[start:end] = [noise] * (end - start)
        return msgspec.structs.replace(rollout, logprobs=logprobs, observed=spans)

    return [
        msgspec.structs.replace(group, rollouts=[change(one) for one in group.rollouts])
        for group in groups
    ]


@pytest.mark.parametrize("name", ["gspo", "ppo", "dpo"])
def test_what_stands_for_the_log_probability_of_an_observed_token_never_matters(
    name: str, fresh: Callable[..., Trainer], batches: list[list[TrainGroup]], tmp_path: Path
) -> None:
    spans = [(2, 4), (6, 7)]
    made = []
    for number, noise in enumerate((0.0, -7.5, float("nan"))):
        trainer = fresh(**OBJECTIVES[name])
        made.append(trainer.train(observing(batches[0], spans, noise), tmp_path / str(number)))
        assert files(tmp_path / str(number)) == files(tmp_path / "0")
    whole = fresh(**OBJECTIVES[name]).train(batches[0], tmp_path / "whole")
    rollouts = sum(len(group.rollouts) for group in batches[0])
    assert made[0]["tokens"] == whole["tokens"] - 3 * rollouts
    assert made[0]["grad_norm"] != whole["grad_norm"]


@pytest.mark.parametrize(
    "spans",
    [[(-1, 2)], [(3, 3)], [(4, 2)], [(0, 10**6)], [(2, 5), (4, 6)], [(4, 6), (0, 2)], "all"],
)
def test_spans_that_cannot_be_are_refused(spans: Any, batches: list[list[TrainGroup]]) -> None:
    group = batches[0][0]
    first = group.rollouts[0]
    wrong = [(0, len(first.tokens))] if spans == "all" else spans
    rollouts = [msgspec.structs.replace(first, observed=wrong), *group.rollouts[1:]]
    rules = make_config().learner
    with pytest.raises(LearnerError, match="a rollout"):
        make_batch(
            [msgspec.structs.replace(group, rollouts=rollouts)],
            rules, version=0, staleness=0, limit=50,
        )  # fmt: skip


def test_length_makes_an_advantage_where_rewards_are_alike(
    batches: list[list[TrainGroup]],
) -> None:
    group = batches[0][0]
    rollouts = [
        msgspec.structs.replace(one, tokens=[1] * count, logprobs=[-1.0] * count, reward=1.0)
        for one, count in zip(group.rollouts, (4, 8, 9, 10), strict=True)
    ]
    groups = [msgspec.structs.replace(group, rollouts=rollouts)]
    config = make_config(learner={"overlong_tokens": 4}, sampling={"max_new_tokens": 10})
    made = make_batch(groups, config.learner, version=0, staleness=0, limit=10)
    # 0, -.5, -.75, -1: less the mean of -.5625
    assert [sample.advantage for sample in made.samples] == [0.5625, 0.0625, -0.1875, -0.4375]
    assert made.metrics["reward_mean"] == 1.0
    assert make_batch(groups, make_config().learner, version=0, staleness=0, limit=10).samples == []


def test_a_pair_is_the_best_and_the_worst(batches: list[list[TrainGroup]]) -> None:
    rules = make_config(learner={"loss": "dpo"}).learner
    group = batches[0][0]
    rewards = (0.5, 0.1, 0.9, 0.3)
    rollouts = [
        msgspec.structs.replace(one, reward=reward)
        for one, reward in zip(group.rollouts, rewards, strict=True)
    ]
    alike = [msgspec.structs.replace(one, reward=1.0) for one in group.rollouts]
    groups = [msgspec.structs.replace(group, rollouts=each) for each in (rollouts, alike)]
    made = make_batch(groups, rules, version=0, staleness=0, limit=50)
    assert [[s.reward for s in unit] for unit in made.parts[0].units] == [pytest.approx([0.9, 0.1])]
