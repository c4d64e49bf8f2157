"""A real learner is given poison: it applies nothing, and no version comes of it.

Each test also shows that without the check it is about, a poisoned version would be there.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from learner_support import load_policy, make_config, random_prompts, scored, seeded_groups
from safetensors.torch import load_file, save_file

from echo_hub.learner import trainer as trainer_module
from echo_hub.learner.canary import Canary
from echo_hub.learner.guard import Memory, Why
from echo_hub.learner.messages import TrainGroup
from echo_hub.learner.trainer import Trainer
from echo_hub.models.make_addmix3 import encode
from echo_p2p.errors import LearnerError, UpdateRefusedError

CONFIG = make_config(learner={"staleness": 8})
PROMPTS = [encode(prompt) for prompt in random_prompts(random.Random(0), 4)]


@pytest.fixture(scope="module")
def groups() -> list[TrainGroup]:
    sampled = seeded_groups(load_policy(CONFIG), random.Random(3), 4)
    return [scored(group, 0) for group in sampled]


@pytest.fixture
def trainer() -> Trainer:
    return Trainer(load_policy(CONFIG), CONFIG, canary=PROMPTS)


def changed(
    groups: list[TrainGroup], number: int, change: Callable[[Any], dict[str, Any]]
) -> list[TrainGroup]:
    """The groups, with the first `number` rollouts of each changed."""
    return [
        msgspec.structs.replace(
            group,
            rollouts=[
                msgspec.structs.replace(rollout, **change(rollout)) if i < number else rollout
                for i, rollout in enumerate(group.rollouts)
            ],
        )
        for group in groups
    ]


def with_a_calm_past(trainer: Trainer, norm: float = 0.1) -> None:
    """As if twenty updates had been applied, each with a gradient of this norm."""
    memory = Memory(norms=(norm,) * 20)
    trainer.state.facts = {**trainer.state.facts, "guard": memory.to_json()}


def refused(trainer: Trainer, groups: list[TrainGroup], out: Path) -> UpdateRefusedError:
    """The refusal of an update; everything must be as before it."""
    before = trainer.state.copy()
    with pytest.raises(UpdateRefusedError) as caught:
        trainer.train(groups, out)
    assert not out.exists()
    after = trainer.state.copy()
    assert (after.version, after.facts) == (before.version, before.facts)
    assert all(torch.equal(before.tensors[name], after.tensors[name]) for name in before.tensors)
    return caught.value


def unguarded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer_module, "judge", lambda *_: None)


def test_log_probabilities_that_are_no_numbers(
    trainer: Trainer, groups: list[TrainGroup], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = changed(groups, 1, lambda r: {"logprobs": [float("nan")] * len(r.logprobs)})
    assert refused(trainer, bad, tmp_path / "v1").why == Why.NOT_FINITE
    unguarded(monkeypatch)
    trainer.train(bad, tmp_path / "v1")
    assert (
        trainer.version == 1
    )  # the clipped ratio has no gradient: nothing else would have seen it


def test_rewards_that_are_no_numbers(
    trainer: Trainer, groups: list[TrainGroup], tmp_path: Path
) -> None:
    for bad in (float("nan"), float("inf")):
        with pytest.raises(LearnerError, match="not finite"):
            trainer.train(changed(groups, 1, lambda _, bad=bad: {"reward": bad}), tmp_path / "v1")
        assert trainer.version == 0
        assert not (tmp_path / "v1").exists()


def test_a_batch_with_a_huge_gradient(
    trainer: Trainer, groups: list[TrainGroup], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_a_calm_past(trainer)
    huge = changed(groups, 4, lambda _: {"reward": 1e4})
    refusal = refused(trainer, huge, tmp_path / "v1")
    assert refusal.why == Why.GRADIENT_SPIKE
    assert "times the median of the last 20 updates" in refusal.message
    trainer.train(groups, tmp_path / "v1")  # an honest one is applied
    unguarded(monkeypatch)
    assert trainer.train(huge, tmp_path / "v2")["grad_norm"] > 10
    assert trainer.version == 2


def test_log_probabilities_that_pass_the_cheap_checks(
    trainer: Trainer, groups: list[TrainGroup], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lies = changed(groups, 1, lambda r: {"logprobs": [-25.0] * len(r.logprobs)})
    refusal = refused(trainer, lies, tmp_path / "v1")
    assert refusal.why == Why.MISMATCH
    unguarded(monkeypatch)
    trainer.train(lies, tmp_path / "v1")
    assert (tmp_path / "v1").is_dir()


def test_an_operator_who_lets_a_run_go_on_lets_it_forget(
    trainer: Trainer, groups: list[TrainGroup], tmp_path: Path
) -> None:
    with_a_calm_past(trainer, norm=1e-6)
    assert refused(trainer, groups, tmp_path / "v1").why == Why.GRADIENT_SPIKE
    trainer.train(groups, tmp_path / "v1", forget=True)
    assert trainer.version == 1
    assert len(Memory.from_json(trainer.state.facts["guard"]).norms) == 1


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 0x40  # the exponent of the last number
    path.write_bytes(bytes(data))


def scale_up(path: Path) -> None:
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "lora_alpha": 8 * config["lora_alpha"]}))


@pytest.mark.parametrize(
    ("name", "spoil"),
    [
        ("adapter_model.safetensors", flip_a_bit),
        ("adapter_model.safetensors", lambda path: path.write_bytes(path.read_bytes()[:-4])),
        ("adapter_model.safetensors", Path.unlink),
        ("adapter_config.json", scale_up),
        ("adapter_config.json", Path.unlink),
    ],
)
def test_files_that_are_not_what_was_trained(
    trainer: Trainer,
    groups: list[TrainGroup],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    spoil: Callable[[Path], None],
) -> None:
    """As if a disk had given back something else than was written to it."""
    write = trainer.state.save

    def write_badly(out: Path) -> None:
        write(out)
        spoil(out / "adapter" / name)

    monkeypatch.setattr(trainer.state, "save", write_badly)
    assert refused(trainer, groups, tmp_path / "v1").why == Why.CANARY
    monkeypatch.setattr(Canary, "check", lambda *_: 0.0)
    trainer.train(groups, tmp_path / "v1")
    assert trainer.version == 1  # which would now be published


def test_a_whole_model_is_read_back_as_nodes_load_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each half of the canary sees a spoilt file without the other."""
    config = make_config(learner={"adapter": "none", "learning_rate": 1e-4})
    trainer = Trainer(load_policy(config), config, canary=PROMPTS)
    trainer.save(tmp_path / "good")
    write = trainer.state.save

    def write_badly(out: Path) -> None:
        write(out)
        path = out / "adapter" / "model.safetensors"
        save_file({n: 1.5 * t for n, t in load_file(path).items()}, path)

    monkeypatch.setattr(trainer.state, "save", write_badly)
    with pytest.raises(LearnerError, match="not what was trained"):
        trainer.save(tmp_path / "spoilt")
    monkeypatch.setattr(torch, "equal", lambda *_: True)
    with pytest.raises(LearnerError, match="answers otherwise"):
        trainer.save(tmp_path / "spoilt too")
    with pytest.raises(UpdateRefusedError) as refusal:  # no version comes of it
        trainer.roll_back(tmp_path / "good", tmp_path / "v1")
    assert refusal.value.why == Why.CANARY
    assert (trainer.version, (tmp_path / "v1").exists()) == (0, False)


def test_weights_that_are_finite_and_whose_answers_are_not(
    trainer: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with torch.no_grad():
        for weight in trainer.policy.weights.values():
            weight.fill_(1e19)
    with pytest.raises(LearnerError, match="does not give finite log-probabilities"):
        trainer.save(tmp_path / "v0")
    monkeypatch.setattr(torch, "isfinite", lambda tensor: torch.ones_like(tensor, dtype=torch.bool))
    with pytest.raises(LearnerError, match="answers otherwise"):  # nan is not within tolerance
        trainer.save(tmp_path / "v1")


def test_a_return_to_an_earlier_version_is_a_new_one(
    trainer: Trainer, groups: list[TrainGroup], tmp_path: Path
) -> None:
    trainer.train(groups, tmp_path / "v1", batch=[1, 2])
    good = trainer.state.copy()
    trainer.train(groups, tmp_path / "v2", batch=[3, 4])
    trainer.roll_back(tmp_path / "v1", tmp_path / "v3")
    now = trainer.state.copy()
    assert now.version == 3
    assert all(torch.equal(good.tensors[name], now.tensors[name]) for name in good.tensors)
    assert now.facts == {**good.facts, "batch": []}
    resumed = Trainer(load_policy(CONFIG), CONFIG, canary=PROMPTS)
    resumed.resume(tmp_path / "v3")
    assert resumed.version == 3
    adapters = [tmp_path / v / "adapter" / "adapter_model.safetensors" for v in ("v1", "v3")]
    assert adapters[0].read_bytes() == adapters[1].read_bytes()

    with pytest.raises(LearnerError, match="cannot read the checkpoint"):
        trainer.roll_back(tmp_path / "v9", tmp_path / "v4")
    assert trainer.version == 3


def test_groups_that_an_update_leaves_out_count_for_the_guard(
    trainer: Trainer, groups: list[TrainGroup], tmp_path: Path
) -> None:
    trainer._several_arms = True  # as with several [[tasks]]
    ours = [msgspec.structs.replace(group, arm=2) for group in groups]
    trainer.train(ours, tmp_path / "v1", blank=[[1.0] * 8] * 4, blank_arms=[1] * 4)
    ((_, reward),) = Memory.from_json(trainer.state.facts["guard"]).rewards
    own = [rollout.reward for group in groups for rollout in group.rollouts]
    assert reward.mean == pytest.approx((sum(own) + 32) / (len(own) + 32))
    assert [arm for arm, _ in reward.arms] == [2] * 4 + [1] * 4
    assert all(mean == 1.0 for arm, mean in reward.arms if arm == 1)
