"""The policy: log-probabilities, adapters on disk, and wearing another adapter."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_models import configs, make_base
from learner_support import load_policy, make_config, seeded_groups
from peft import PeftModel
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from echo_hub.audit.reader import Reader
from echo_hub.config import RunConfig
from echo_hub.learner import heads
from echo_hub.learner.batches import rows_of
from echo_hub.learner.policy import Policy
from echo_hub.models import addmix3_path
from echo_node.engines.base import Job
from echo_node.engines.driver import Driver
from echo_node.engines.torch import TorchEngine
from echo_p2p.errors import ConfigError, LearnerError
from echo_p2p.toml import validate
from echo_p2p.wire import Sampling

RAGGED = [
    ([5, 6, 7], [8, 9, 1]),
    ([5, 6, 7, 8, 9, 10, 11], [4]),
    ([9], [4, 5, 6, 7, 8, 9, 10, 11, 12, 1]),
]


@pytest.fixture
def policy() -> Policy:
    """A policy whose adapter does something: fresh ones are exactly zero."""
    made = load_policy(make_config())
    torch.manual_seed(7)
    with torch.no_grad():
        for weight in made.weights.values():
            weight.normal_(std=0.1)
    return made


def reference_logprobs(model: torch.nn.Module) -> torch.Tensor:
    """One sequence at a time, no padding, the whole model."""
    parts = []
    for prompt, answer in RAGGED:
        ids = torch.tensor([prompt + answer])
        logits = model(input_ids=ids).logits[0, len(prompt) - 1 : -1]
        parts.append(logits.log_softmax(-1).gather(-1, torch.tensor(answer)[:, None])[:, 0])
    return torch.cat(parts)


def test_logprobs_are_those_of_the_whole_model_one_by_one(policy: Policy):
    with torch.no_grad():
        expected = reference_logprobs(policy.causal)
        torch.testing.assert_close(policy.logprobs(RAGGED), expected, atol=1e-5, rtol=0)


def test_logits_in_pieces_give_the_same_gradient(policy: Policy, monkeypatch: pytest.MonkeyPatch):
    def gradients() -> list[torch.Tensor]:
        weights = list(policy.weights.values())
        return list(torch.autograd.grad(policy.logprobs(RAGGED).square().sum(), weights))

    whole = gradients()
    monkeypatch.setattr(heads, "HEAD_ELEMENTS", 3 * policy.vocab_size)
    assert len(list(policy.slices(14))) == 5
    for a, b in zip(whole, gradients(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("architecture", sorted(configs()))
def test_sequences_in_one_row_come_out_as_alone(architecture: str, tmp_path: Path):
    base = make_base(tmp_path / "base", architecture)
    policy = Policy.load(base, make_config().learner, dtype="float32", seed=0)
    assert policy.packs
    sequences = [*RAGGED, ([5, 6, 7], list(range(8, 28)))]
    lengths = [len(prompt) + len(answer) for prompt, answer in sequences]
    assert rows_of(lengths, packed=True) == [[3], [2, 1], [0]]
    together = policy.score(sequences)
    policy.packs = False
    for ours, theirs in zip(together, policy.score(sequences), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


def test_entropies_are_those_of_the_whole_model(policy: Policy):
    with torch.no_grad():
        logprobs = [
            policy.causal(input_ids=torch.tensor([p + a]))
            .logits[0, len(p) - 1 : -1]
            .log_softmax(-1)
            for p, a in RAGGED
        ]
        expected = torch.cat([-(each.exp() * each).sum(-1) for each in logprobs])
        torch.testing.assert_close(policy.score(RAGGED).entropy, expected, atol=1e-4, rtol=0)


def test_layers_computed_again_give_the_same_gradient():
    def gradients(**learner: Any) -> list[torch.Tensor]:
        policy = load_policy(make_config(learner=learner))
        torch.manual_seed(7)
        for weight in policy.weights.values():
            weight.data.normal_(std=0.1)
        calls = []
        policy.causal.get_decoder().layers[0].mlp.register_forward_pre_hook(
            lambda *_: calls.append(1)
        )
        loss = policy.logprobs(RAGGED).square().sum()
        found = list(torch.autograd.grad(loss, list(policy.weights.values())))
        assert len(calls) == (2 if learner else 1)
        return found

    for a, b in zip(gradients(), gradients(gradient_checkpointing=True), strict=True):
        assert torch.equal(a, b)


def test_a_fresh_adapter_is_the_base_and_its_seed_decides_it():
    first, same, other = (load_policy(make_config(run={"id": "t", "seed": s})) for s in (1, 1, 2))
    base = AutoModelForCausalLM.from_pretrained(addmix3_path(), dtype=torch.float32)
    with torch.no_grad():
        assert torch.allclose(first.logprobs(RAGGED), reference_logprobs(base), atol=1e-5)
    assert all(torch.equal(first.weights[n], same.weights[n]) for n in first.weights)
    assert any(not torch.equal(first.weights[n], other.weights[n]) for n in first.weights)


def test_the_adapter_folder_is_a_normal_peft_adapter(policy: Policy, tmp_path: Path):
    policy.save_adapter(tmp_path / "adapter")
    base = AutoModelForCausalLM.from_pretrained(addmix3_path(), dtype=torch.float32)
    loaded = PeftModel.from_pretrained(base, str(tmp_path / "adapter"))
    with torch.no_grad():
        expected = policy.logprobs(RAGGED)
        torch.testing.assert_close(reference_logprobs(loaded), expected, atol=1e-5, rtol=0)
        merged = loaded.merge_and_unload()
        torch.testing.assert_close(reference_logprobs(merged), expected, atol=1e-4, rtol=0)


def test_the_published_config_holds_no_path(policy: Policy, tmp_path: Path):
    policy.save_adapter(tmp_path / "adapter")
    text = (tmp_path / "adapter" / "adapter_config.json").read_text()
    assert json.loads(text)["base_model_name_or_path"] == "addmix3"
    assert "/" not in text


def test_an_adapter_read_back_is_the_same_bits(policy: Policy, tmp_path: Path):
    policy.save_adapter(tmp_path / "adapter")
    tensors = policy.read_adapter(tmp_path / "adapter")
    assert all(torch.equal(tensors[name], weight) for name, weight in policy.weights.items())


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda t: t.pop(next(iter(t))), "1 names differ"),
        (lambda t: t.update({next(iter(t)): torch.zeros(3)}), "another shape"),
        (lambda t: next(iter(t.values())).fill_(float("nan")), "non-finite"),
    ],
)
def test_a_foreign_adapter_is_refused(policy: Policy, tmp_path: Path, spoil, message: str):
    tensors = {name: weight.detach().clone() for name, weight in policy.weights.items()}
    spoil(tensors)
    save_file(tensors, tmp_path / "adapter_model.safetensors")
    with pytest.raises(LearnerError, match=message):
        policy.read_adapter(tmp_path)


def test_a_missing_or_corrupt_adapter_is_refused(policy: Policy, tmp_path: Path):
    with pytest.raises(LearnerError, match="cannot read"):
        policy.read_adapter(tmp_path)
    (tmp_path / "adapter_model.safetensors").write_bytes(b"\x80\x04no pickle here")
    with pytest.raises(LearnerError, match="cannot read"):
        policy.read_adapter(tmp_path)


def test_wearing_another_adapter_leaves_the_own_one_as_it_was(policy: Policy):
    other = {name: torch.randn_like(weight) for name, weight in policy.weights.items()}
    before = {name: weight.detach().clone() for name, weight in policy.weights.items()}
    with torch.no_grad():
        own = policy.logprobs(RAGGED)
        with policy.wearing(other):
            assert not torch.allclose(policy.logprobs(RAGGED), own, atol=0.1)
        with pytest.raises(ZeroDivisionError), policy.wearing(other):
            raise ZeroDivisionError
        assert torch.equal(policy.logprobs(RAGGED), own)
    assert all(torch.equal(before[name], weight) for name, weight in policy.weights.items())


def test_sampled_logprobs_are_derived_again(policy: Policy):
    sampled = seeded_groups(policy, random.Random(0), 2)
    pairs = [(group.prompt, answer) for group in sampled for answer in group.answers]
    claimed = [value for group in sampled for row in group.logprobs for value in row]
    with torch.no_grad():
        derived = policy.logprobs(pairs)
    torch.testing.assert_close(derived, torch.tensor(claimed), atol=1e-3, rtol=0)


def test_token_ids_out_of_range_are_refused(policy: Policy):
    for token in (-1, policy.vocab_size):
        with pytest.raises(LearnerError, match="not in the vocabulary"):
            policy.answers([([5], [token])])


def test_empty_prompts_and_answers_are_refused(policy: Policy):
    for pair in (([], [5]), ([5], [])):
        with pytest.raises(LearnerError, match="empty"):
            policy.answers([([5], [5]), pair])


def test_what_cannot_be_loaded_is_said_in_a_sentence(tmp_path: Path):
    config = make_config(learner={"target_modules": ["q_proj", "query"]})
    with pytest.raises(ConfigError, match=r"no linear layers named query\. It has: down_proj"):
        load_policy(config)
    with pytest.raises(ConfigError, match="cannot load a base model"):
        Policy.load(tmp_path, make_config().learner, dtype="float32", seed=0)
    for device in ("meta", "no-such", "", "hpu", *(() if torch.cuda.is_available() else ("cuda",))):
        with pytest.raises(ConfigError, match=rf"learner\.device = '{device}' cannot be used"):
            load_policy(make_config(learner={"device": device}))


@pytest.mark.parametrize(
    "targets", ["all-linear", r".*layers\.0\..*(q|down)_proj", ["mlp.up_proj"]]
)
def test_a_scaled_adapter_on_any_layers_is_what_engine_and_auditor_merge(
    targets: Any, tmp_path: Path
):
    config = make_config(learner={"rslora": True, "rank": 9, "target_modules": targets})
    policy = load_policy(config)
    with torch.no_grad():
        for weight in policy.weights.values():
            weight.normal_(std=0.05)
        policy.save_adapter(tmp_path / "adapter")
        expected = policy.logprobs(RAGGED)
        base = AutoModelForCausalLM.from_pretrained(addmix3_path(), dtype=torch.float32)
        assert not torch.allclose(expected, reference_logprobs(base), atol=0.01)
        loaded = PeftModel.from_pretrained(base, str(tmp_path / "adapter"))
        torch.testing.assert_close(reference_logprobs(loaded), expected, atol=1e-5, rtol=0)
        with Reader(policy).wearing(tmp_path / "adapter"):
            torch.testing.assert_close(policy.logprobs(RAGGED), expected, atol=1e-4, rtol=0)
    engine = Driver(TorchEngine(max_sequences=4, device="cpu"))
    engine.load(addmix3_path(), "float32")
    engine.activate(1, tmp_path / "adapter")
    sampling = Sampling(temperature=1.0, max_new_tokens=12, stop=(1,))
    prompt = RAGGED[0][0]
    (answer,) = engine.generate([Job(prompt, 3, 0, sampling)])
    found = policy.logprobs([(prompt, answer.tokens)])
    torch.testing.assert_close(found, torch.tensor(answer.logprobs), atol=1e-3, rtol=0)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"target_modules": "lm_head"}, "no linear layer of the base model matches 'lm_head'"),
        ({"target_modules": ["lm_head"]}, "no linear layers named lm_head"),
        ({"target_modules": "(q_proj"}, "is no regular expression"),
    ],
)
def test_targets_that_no_engine_takes_are_refused(settings: dict[str, Any], complaint: str):
    with pytest.raises(ConfigError, match=re.escape(complaint)):
        load_policy(make_config(learner=settings))


@pytest.mark.parametrize(
    ("learner", "complaint"),
    [
        ({"dora": True}, r"learner\.dora: vLLM does not yet support DoRA"),
        ({"dropout": 0.1}, r"learner\.dropout: an adapter that drops out"),
        ({"rank": 600}, r"learner\.rank: .*512"),
        ({"target_modules": []}, r"learner\.target_modules.*: name at least one"),
    ],
)
def test_adapters_that_no_engine_takes_are_refused(learner: dict[str, Any], complaint: str):
    data = {"run": {"id": "t"}, "learner": learner}
    with pytest.raises(ConfigError, match=complaint):
        validate(data, RunConfig, source="run.toml")


def test_all_weights_are_trained_in_float32_only():
    data = {"run": {"id": "t"}, "learner": {"adapter": "none"}, "base": {"dtype": "bfloat16"}}
    with pytest.raises(ConfigError, match=r'base\.dtype: bfloat16 does not go with .*"none"'):
        validate(data, RunConfig, source="run.toml")


def test_on_a_bfloat16_base_adapter_gradient_and_scores_are_float32():
    policy = load_policy(make_config(base={"dtype": "bfloat16"}))
    assert policy.causal.get_input_embeddings().weight.dtype == torch.bfloat16
    scores = policy.score(RAGGED)
    assert {part.dtype for part in scores} == {torch.float32}
    scores.logprobs.sum().backward()
    assert {w.dtype for w in policy.weights.values()} == {torch.float32}
    assert {w.grad.dtype for w in policy.weights.values() if w.grad is not None} == {torch.float32}
