"""What a learner is said to need is what it keeps; what does not fit is said with a way out."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from learner_support import make_config

from echo_hub.config import RunConfig
from echo_hub.learner.fit import (
    Shape,
    activations,
    check_fit,
    need_of,
    shape_of,
    trained_weights,
)
from echo_hub.learner.policy import Policy
from echo_hub.models import addmix3_path
from echo_p2p.errors import ConfigError

SEVEN_B = Shape(
    vocabulary=152_064, hidden=3584, inner=18_944, layers=28, queries=3584, keys=512,
    parameters=7_615_616_512,
)  # fmt: skip
"""Qwen2.5-7B."""
LONGEST = 1024
LOGITS = 1 << 26


def addmix3() -> Shape:
    shape = shape_of(addmix3_path())
    assert shape is not None
    return shape


def kept_bytes(policy: Policy, rows: int, width: int) -> int:
    """What a forward pass keeps for the backward pass, the weights apart."""
    weights = {p.untyped_storage().data_ptr() for p in policy.causal.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        hidden, _ = policy.answers([([5] * (width // 2), [6] * (width - width // 2))] * rows)
    assert hidden.requires_grad
    return sum(kept.values())


@pytest.mark.parametrize(
    ("learner", "dtype"),
    [
        ({}, "float32"),
        ({}, "bfloat16"),
        ({"adapter": "none"}, "float32"),
        ({"target_modules": ["q_proj", "down_proj"], "rank": 4}, "float32"),
        ({"target_modules": ["q_proj"]}, "bfloat16"),
    ],
)
def test_activations_are_what_is_kept(learner: dict[str, Any], dtype: str):
    config = make_config(learner=learner, base={"dtype": dtype})
    policy = Policy.load(addmix3_path(), config.learner, dtype=config.base.dtype, seed=0)
    assert activations(addmix3(), config, 512) == pytest.approx(kept_bytes(policy, 8, 64), rel=0.06)
    assert trained_weights(addmix3(), config) == sum(w.numel() for w in policy.weights.values())


def test_layers_computed_again_keep_only_what_they_are_given():
    config = make_config(learner={"gradient_checkpointing": True})
    policy = Policy.load(addmix3_path(), config.learner, dtype="float32", seed=0)
    between = kept_bytes(policy, 8, 64)
    one_layer = activations(addmix3(), make_config(), 512) / 3
    estimate = activations(addmix3(), config, 512)
    assert between < 0.2 * estimate
    assert estimate == pytest.approx(between + one_layer, rel=0.06)


def test_shapes_are_read_from_the_snapshot(tmp_path: Path):
    assert addmix3() == Shape(
        vocabulary=58, hidden=128, inner=352, layers=3, queries=128, keys=64, parameters=562_048
    )
    shutil.copytree(addmix3_path(), tmp_path / "base")
    config = json.loads((tmp_path / "base" / "config.json").read_text())
    for text in ("{}", "[]", "{", json.dumps({**config, "hidden_size": "wide"})):
        (tmp_path / "base" / "config.json").write_text(text)
        assert shape_of(tmp_path / "base") is None
    (tmp_path / "base" / "config.json").write_text(json.dumps(config))
    (tmp_path / "base" / "model.safetensors").write_bytes(b"\xff" * 64)
    assert shape_of(tmp_path / "base") is None
    assert shape_of(tmp_path) is None


def large(**learner: Any) -> RunConfig:
    dtype = "float32" if learner.get("adapter") == "none" else "bfloat16"
    return make_config(base={"dtype": dtype}, learner={"device": "cuda", **learner})


def test_a_sharded_base_needs_a_part_of_it_on_each_device():
    whole = need_of(SEVEN_B, large(), longest=LONGEST, logits=LOGITS)
    parts = [need_of(SEVEN_B, large(), longest=LONGEST, logits=LOGITS, shards=n) for n in (2, 4, 8)]
    assert whole.base > parts[0].base > parts[1].base > parts[2].base > whole.base / 8
    assert parts[1].base < whole.base / 2  # but for what stays whole, a quarter
    assert parts[1].audit < whole.audit / 10
    assert parts[1].trained == whole.trained


def test_a_large_model_s_parts_are_of_the_known_sizes():
    need = need_of(SEVEN_B, large(), longest=LONGEST, logits=LOGITS)
    assert need.base == 2 * SEVEN_B.parameters
    assert need.trained == 9 * 4 * 40_370_176  # what PEFT says of rank 16 on all linear layers
    assert need.logits == 1 << 30
    whole = need_of(SEVEN_B, large(adapter="none"), longest=LONGEST, logits=LOGITS)
    assert (whole.base, whole.trained) == (0, 36 * SEVEN_B.parameters)
    less = need_of(SEVEN_B, large(gradient_checkpointing=True), longest=LONGEST, logits=LOGITS)
    assert less.activations < 0.2 * need.activations
    short = need_of(SEVEN_B, large(microbatch_tokens=512), longest=LONGEST, logits=LOGITS)
    assert (
        short.activations
        == need_of(
            SEVEN_B, large(microbatch_tokens=1024), longest=LONGEST, logits=LOGITS
        ).activations
    )  # the longest sequence is a batch of its own


@pytest.mark.parametrize(
    ("learner", "gigabytes", "way_out"),
    [
        ({}, 80, "learner.microbatch_tokens = "),
        ({"microbatch_tokens": 1024}, 40, "learner.gradient_checkpointing = true."),
        ({}, 34, "learner.gradient_checkpointing = true and learner.microbatch_tokens = "),
        ({"adapter": "none"}, 200, 'learner.adapter = "lora"'),
        ({}, 12, "Choose a smaller base.path"),
    ],
)
def test_what_does_not_fit_is_refused_with_a_way_out(
    learner: dict[str, Any], gigabytes: int, way_out: str
):
    how: dict[str, Any] = {"longest": LONGEST, "logits": LOGITS}
    memory = int(gigabytes * 1e9)
    with pytest.raises(ConfigError, match=f"the {gigabytes} GB of cuda:0: base ") as refused:
        check_fit(SEVEN_B, large(**learner), memory=memory, where="cuda:0", **how)
    assert way_out in refused.value.fix
    if refused.value.fix.startswith("Set "):
        assignments = refused.value.fix.removeprefix("Set ").removesuffix(".").split(" and ")
        changes = dict(one.removeprefix("learner.").split(" = ") for one in assignments)
        better = large(**learner | {key: json.loads(value) for key, value in changes.items()})
        assert check_fit(SEVEN_B, better, memory=memory, where="", **how).total <= memory
