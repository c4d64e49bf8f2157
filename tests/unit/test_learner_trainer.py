"""Updates that count wholly or not at all, checkpoints, and a reward that rises."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from learner_support import load_policy, make_config, scored, seeded_groups

from echo_hub.folders import whole_folder
from echo_hub.learner.batches import MOST_PADDING
from echo_hub.learner.messages import TrainGroup
from echo_hub.learner.trainer import Trainer
from echo_p2p.errors import LearnerError


@pytest.fixture(scope="module")
def batches() -> list[list[TrainGroup]]:
    """Four updates' groups, all sampled from version 0."""
    policy = load_policy(make_config())
    rng = random.Random(3)
    return [[scored(group, 0) for group in seeded_groups(policy, rng, 4)] for _ in range(4)]


def make_trainer(**learner: Any) -> Trainer:
    config = make_config(learner={"staleness": 8, **learner})
    return Trainer(load_policy(config), config)


def contents(folder: Path) -> dict[str, bytes]:
    files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def with_rollout(groups: list[TrainGroup], **changes: Any) -> list[TrainGroup]:
    """The groups with the first rollout changed."""
    rollouts = [msgspec.structs.replace(groups[0].rollouts[0], **changes), *groups[0].rollouts[1:]]
    return [msgspec.structs.replace(groups[0], rollouts=rollouts), *groups[1:]]


def test_four_updates_are_two_and_two_resumed(batches: list[list[TrainGroup]], tmp_path: Path):
    straight = make_trainer()
    for i, groups in enumerate(batches):
        straight.train(groups, tmp_path / f"straight{i + 1}")
    for i, groups in enumerate(batches):
        if i % 2 == 0:
            resumed = make_trainer()
            if i:
                resumed.resume(tmp_path / f"resumed{i}")
        resumed.train(groups, tmp_path / f"resumed{i + 1}")
    assert resumed.version == 4
    for i in range(1, 5):
        assert contents(tmp_path / f"straight{i}") == contents(tmp_path / f"resumed{i}")


def test_version_0_is_a_checkpoint_like_any_other(batches: list[list[TrainGroup]], tmp_path: Path):
    first = make_trainer()
    first.save(tmp_path / "v0")
    assert set(contents(tmp_path / "v0")) == {
        "adapter/adapter_config.json",
        "adapter/adapter_model.safetensors",
        "state.json",
        "state.safetensors",
    }
    again = make_trainer()
    again.train(batches[1], tmp_path / "elsewhere")
    again.resume(tmp_path / "v0")
    assert again.version == 0
    first.train(batches[0], tmp_path / "a")
    again.train(batches[0], tmp_path / "b")
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_micro_batches_change_nothing_but_rounding(batches: list[list[TrainGroup]], tmp_path: Path):
    whole, cut = make_trainer(), make_trainer(microbatch_tokens=100)
    one = whole.train(batches[0], tmp_path / "a")
    many = cut.train(batches[0], tmp_path / "b")
    for name in ("loss", "grad_norm", "kl", "ess", "tokens", "trained_rollouts"):
        assert one[name] == pytest.approx(many[name], abs=1e-6)


def test_metrics(batches: list[list[TrainGroup]], tmp_path: Path):
    trainer = make_trainer()
    groups = batches[0]
    rewards = [rollout.reward for group in groups for rollout in group.rollouts]
    dead = sum(len({rollout.reward for rollout in group.rollouts}) == 1 for group in groups)
    metrics = trainer.train(groups, tmp_path / "v1")
    assert metrics["reward_mean"] == pytest.approx(sum(rewards) / len(rewards))
    assert metrics["zero_advantage_groups"] == dead
    assert metrics["trained_rollouts"] == len(rewards) - 8 * dead
    assert (metrics["lag_mean"], metrics["lag_max"]) == (0.0, 0.0)
    assert metrics["mismatch_max"] < 1e-3
    assert metrics["clip_fraction"] == 0.0
    assert metrics["ess"] == pytest.approx(1.0, abs=1e-4)
    assert 0.0 <= metrics["padding"] <= MOST_PADDING
    later = trainer.train([*batches[1][:3], msgspec.structs.replace(batches[1][3], version=1)],
                          tmp_path / "v2")  # fmt: skip
    assert (later["lag_mean"], later["lag_max"]) == (0.75, 1.0)
    assert later["kl"] > 0.0


def test_an_update_without_any_advantage_still_counts(
    batches: list[list[TrainGroup]], tmp_path: Path
):
    trainer = make_trainer()
    group = batches[0][0]
    same = [msgspec.structs.replace(rollout, reward=1.0) for rollout in group.rollouts]
    metrics = trainer.train([msgspec.structs.replace(group, rollouts=same)], tmp_path / "v1")
    assert trainer.version == 1
    assert (metrics["loss"], metrics["grad_norm"], metrics["trained_rollouts"]) == (0.0, 0.0, 0.0)


BAD = {
    "nan log-probability": lambda g: with_rollout(
        g, reward=5.0, logprobs=[float("nan")] * len(g[0].rollouts[0].tokens)
    ),
    "nan reward": lambda g: with_rollout(g, reward=float("nan")),
    "infinite reward": lambda g: with_rollout(g, reward=float("inf")),
    "empty answer": lambda g: with_rollout(g, tokens=[], logprobs=[]),
    "too few log-probabilities": lambda g: with_rollout(g, logprobs=[-1.0]),
    "token out of range": lambda g: with_rollout(g, reward=5.0, tokens=[10**6], logprobs=[-1.0]),
    "from the future": lambda g: [msgspec.structs.replace(g[0], version=2), *g[1:]],
    "no groups": lambda _: [],
    "ragged groups": lambda g: [
        msgspec.structs.replace(g[0], rollouts=g[0].rollouts[:3]), *g[1:]
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_refused_update_leaves_everything_as_it_was(
    name: str, batches: list[list[TrainGroup]], tmp_path: Path
):
    trainer, untouched = make_trainer(), make_trainer()
    for each in (trainer, untouched):
        each.train(batches[0], tmp_path / "v1")
    with pytest.raises(LearnerError):
        trainer.train(BAD[name](batches[1]), tmp_path / "bad")
    assert trainer.version == 1
    assert [path.name for path in tmp_path.iterdir()] == ["v1"]
    trainer.train(batches[2], tmp_path / "a")
    untouched.train(batches[2], tmp_path / "b")
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_weights_that_would_not_be_finite_are_not_taken(
    batches: list[list[TrainGroup]], tmp_path: Path
):
    trainer = make_trainer(weight_decay=1e300)  # loss and gradient stay finite; the step does not
    before = {name: weight.detach().clone() for name, weight in trainer.policy.weights.items()}
    with pytest.raises(LearnerError, match="weights that are not finite"):
        trainer.train(batches[0], tmp_path / "v1")
    assert trainer.version == 0
    assert all(torch.equal(before[n], weight) for n, weight in trainer.policy.weights.items())


def test_a_checkpoint_that_cannot_be_written_is_no_update(
    batches: list[list[TrainGroup]], tmp_path: Path
):
    trainer = make_trainer()
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(LearnerError, match="cannot write the checkpoint"):
        trainer.train(batches[0], tmp_path / "file" / "v1")
    assert trainer.version == 0


def test_no_rollout_over_the_staleness_bound_is_trained_on(
    batches: list[list[TrainGroup]], tmp_path: Path
):
    trainer = make_trainer(staleness=1)
    trainer.train(batches[0], tmp_path / "v1")
    trainer.train(batches[1], tmp_path / "v2")
    with pytest.raises(LearnerError, match="lag 2 to 2, where 0 to 1"):
        trainer.train(batches[2], tmp_path / "v3")


def test_a_broken_checkpoint_is_refused(batches: list[list[TrainGroup]], tmp_path: Path):
    trainer = make_trainer()
    trainer.train(batches[0], tmp_path / "v1")
    with pytest.raises(LearnerError, match="cannot read the checkpoint"):
        make_trainer().resume(tmp_path / "v2")
    with pytest.raises(LearnerError, match="not of this run"):
        make_trainer(rank=8).resume(tmp_path / "v1")
    adapter = tmp_path / "v1" / "adapter" / "adapter_model.safetensors"
    whole = adapter.read_bytes()
    adapter.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))  # another number, as good as any
    with pytest.raises(LearnerError, match=r"damaged: adapter/adapter_model\.safetensors"):
        make_trainer().resume(tmp_path / "v1")
    adapter.unlink()
    with pytest.raises(LearnerError, match=r"damaged: adapter/adapter_model\.safetensors"):
        make_trainer().resume(tmp_path / "v1")


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path):
    with pytest.raises(ZeroDivisionError), whole_folder(tmp_path / "out") as draft:
        (draft / "half").write_text("x")
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []
    script = (
        "import os, sys, pathlib\n"
        "from echo_hub.folders import whole_folder\n"
        "with whole_folder(pathlib.Path(sys.argv[1])) as draft:\n"
        "    (draft / 'half').write_text('x')\n"
        "    os._exit(9)\n"
    )
    killed = subprocess.run([sys.executable, "-c", script, str(tmp_path / "out")], check=False)
    assert killed.returncode == 9
    assert not (tmp_path / "out").exists()
    with whole_folder(tmp_path / "out") as draft:
        (draft / "whole").write_text("y")
    assert {path.name for path in tmp_path.iterdir()} == {"out"}
    assert contents(tmp_path / "out") == {"whole": b"y"}


def test_ten_updates_of_128_rollouts_raise_the_reward(tmp_path: Path):
    config = make_config()
    trainer = Trainer(load_policy(config), config)
    rng = random.Random(1)
    rewards = []
    for _ in range(10):
        sampled = seeded_groups(trainer.policy, rng, 16)
        groups = [scored(group, trainer.version) for group in sampled]
        rewards.append(trainer.train(groups, tmp_path / "checkpoint")["reward_mean"])
    assert 0.25 < rewards[0] < 0.5
    assert sum(rewards[-3:]) / 3 > 0.7, rewards
