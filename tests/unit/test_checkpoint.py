"""Checkpoints: all of the state, whole or not at all, and nothing that was not written."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from learner_support import load_policy, make_config
from safetensors.torch import load_file, save_file

from echo_hub.learner.checkpoint import TrainState
from echo_hub.learner.policy import Policy
from echo_p2p.errors import LearnerError

CONFIG = make_config()


@pytest.fixture(scope="module")
def policy() -> Policy:
    return load_policy(CONFIG)


def make_state(policy: Policy) -> TrainState:
    weights = list(policy.weights.values())
    state = TrainState(policy, torch.optim.AdamW(weights, lr=1e-3), device="cpu")
    state.extra["gradient"] = torch.zeros(3)
    return state


def step(state: TrainState, policy: Policy) -> None:
    """An update that touches everything there is."""
    for weight in policy.weights.values():
        weight.grad = torch.randn_like(weight)
    state._optimizer.step()
    state.extra["gradient"].add_(torch.rand(3))
    state.facts = {**state.facts, "guard": {"norms": [*state.facts.get("guard", []), 0.1]}}
    state.version += 1


def files(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*") if f.is_file()}


def test_what_is_restored_or_resumed_goes_on_as_if_nothing_had_happened(
    policy: Policy, tmp_path: Path
):
    state = make_state(policy)
    step(state, policy)
    state.save(tmp_path / "v1")
    before = state.copy()
    step(state, policy)
    state.save(tmp_path / "v2")
    assert files(tmp_path / "v1") != files(tmp_path / "v2")

    state.restore(before)
    state.save(tmp_path / "again1")
    step(state, policy)  # draws the same gradient: the generator was put back too
    state.save(tmp_path / "again2")
    resumed = make_state(policy)
    resumed.resume(tmp_path / "v1")
    assert (resumed.version, resumed.facts) == (1, {"guard": {"norms": [0.1]}})
    step(resumed, policy)
    resumed.save(tmp_path / "resumed2")
    assert files(tmp_path / "v1") == files(tmp_path / "again1")
    assert files(tmp_path / "v2") == files(tmp_path / "again2") == files(tmp_path / "resumed2")


def test_a_snapshot_does_not_change_with_what_it_is_of(policy: Policy):
    state = make_state(policy)
    before = state.copy()
    kept = {name: tensor.clone() for name, tensor in before.tensors.items()}
    step(state, policy)
    assert all(torch.equal(kept[name], tensor) for name, tensor in before.tensors.items())
    assert before.facts == {}


def test_every_changed_byte_is_noticed(policy: Policy, tmp_path: Path):
    state = make_state(policy)
    state.save(tmp_path / "v0")
    for number, name in enumerate(files(tmp_path / "v0")):
        copy = tmp_path / f"copy{number}"
        shutil.copytree(tmp_path / "v0", copy)
        whole = (copy / name).read_bytes()
        (copy / name).write_bytes(whole[:-2] + bytes([whole[-2] ^ 1]) + whole[-1:])
        with pytest.raises(LearnerError, match=r"damaged|cannot read"):
            state.read(copy)
    (tmp_path / "v0" / "extra").write_bytes(b"")
    with pytest.raises(LearnerError, match="damaged: extra is not as written"):
        state.read(tmp_path / "v0")


def test_another_format_and_other_tensors_are_refused(policy: Policy, tmp_path: Path):
    state = make_state(policy)
    state.save(tmp_path / "v0")
    meta = json.loads((tmp_path / "v0" / "state.json").read_text())
    (tmp_path / "v0" / "state.json").write_text(json.dumps({**meta, "format": 99}))
    with pytest.raises(LearnerError, match="format 99; this program knows 1") as caught:
        state.resume(tmp_path / "v0")
    assert "version of echo-p2p that made it" in caught.value.fix

    state.extra["another"] = torch.zeros(1)
    state.save(tmp_path / "v1")
    with pytest.raises(LearnerError, match=r"1 names differ, first extra\.another"):
        make_state(policy).read(tmp_path / "v1")


def test_only_safetensors_and_json_are_written(policy: Policy, tmp_path: Path):
    state = make_state(policy)
    state.save(tmp_path / "v0")
    assert {Path(name).suffix for name in files(tmp_path / "v0")} == {".json", ".safetensors"}
    tensors = load_file(tmp_path / "v0" / "state.safetensors")
    save_file(tensors, tmp_path / "copy.safetensors")  # plain tensors, nothing else
    assert {"step", "rng.cpu", "extra.gradient"} < tensors.keys()
