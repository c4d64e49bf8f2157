"""MLX against transformers: every architecture that is taken, and a thousand rollouts."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mlx.core", reason="MLX is not installed")

import torch
from engine_models import make_adapter
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from echo_hub.models import addmix3_path
from echo_node.engines.base import Completion, Job
from echo_node.engines.driver import Driver
from echo_node.engines.mlx import MlxEngine
from echo_node.engines.mlx_config import PROVEN
from echo_node.engines.torch import TorchEngine
from echo_p2p.wire import Sampling

pytestmark = pytest.mark.mlx
torch.set_num_threads(1)

VOCAB = 97
THETA = 777.0  # nobody's default
ROPE: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": 4.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 64},
    "llama3": {
        "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
}  # fmt: skip
SIZES = {
    "vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
ODD: dict[str, dict[str, Any]] = {
    "granite": {"logits_scaling": 2.0, "residual_multiplier": 0.5, "attention_multiplier": 0.2},
    "llama": {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False},
    "mistral": {"head_dim": 32, "sliding_window": None},
    "qwen3": {"head_dim": 32},
}
CASES = [(name, kind) for name in sorted(PROVEN) for kind in sorted(PROVEN[name])]


def linear_layers(model: torch.nn.Module) -> list[str]:
    names = {
        n.rpartition(".")[2] for n, m in model.named_modules() if isinstance(m, torch.nn.Linear)
    }
    return sorted(names - {"lm_head"})


@pytest.mark.parametrize(("architecture", "kind"), CASES)
def test_each_architecture_computes_what_transformers_does(
    architecture: str, kind: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    rope = {"rope_type": kind, "rope_theta": THETA, **ROPE[kind]}
    config = AutoConfig.for_model(
        architecture, **{**SIZES, **ODD.get(architecture, {}), "rope_parameters": rope}
    )
    model = AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        if parameter.dim() == 2:
            parameter.data.mul_(4.0)  # less flat than the initialisation
        elif parameter.dim() == 1:
            parameter.data.add_(0.1 * torch.randn_like(parameter))  # biases and norms count too
    model.save_pretrained(tmp_path / "base")
    adapter = make_adapter(
        tmp_path / "base", tmp_path / "adapter", 1,
        target_modules=linear_layers(model), use_rslora=kind == "default",
    )  # fmt: skip
    engines = [
        Driver(e) for e in (MlxEngine(max_sequences=8), TorchEngine(max_sequences=8, device="cpu"))
    ]
    sampling = Sampling(temperature=1.0, max_new_tokens=100, stop=())
    prompts = [torch.randint(0, VOCAB, (n,)).tolist() for n in (1, 40, 120)]
    answers, scores = [], []
    for driver in engines:
        driver.load(tmp_path / "base", "float32")
        driver.activate(1, adapter)
        answers.append(driver.generate([Job(p, 5, i, sampling) for i, p in enumerate(prompts)]))
        scores.append(driver.score(torch.arange(200).remainder(VOCAB).tolist()))
    assert scores[0] == pytest.approx(scores[1], abs=1e-4)
    for ours, theirs in zip(*answers, strict=True):
        assert ours.tokens == theirs.tokens
        assert ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-4)


@pytest.fixture(scope="module")
def sums() -> list[Job]:
    """A thousand rollouts: 125 sums, eight answers to each."""
    base = addmix3_path()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(base)
    sampling = Sampling(temperature=1.0, max_new_tokens=40, stop=(tokenizer.eos_token_id,))
    prompts = [tokenizer.encode(f"{100 + 7 * i}+{991 - 5 * i}=") for i in range(125)]
    return [Job(p, 2**62 + 3 * i, k, sampling) for i, p in enumerate(prompts) for k in range(8)]


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_adapter(addmix3_path(), tmp_path_factory.mktemp("adapter"), 1, r=16, lora_alpha=4)


def answers_of(engine: Any, dtype: Any, adapter: Path, jobs: list[Job]) -> list[Completion]:
    driver = Driver(engine)
    driver.load(addmix3_path(), dtype)
    driver.activate(1, adapter)
    return driver.generate(jobs)


def test_a_thousand_rollouts_are_the_same_tokens(sums: list[Job], adapter: Path) -> None:
    ours = answers_of(MlxEngine(max_sequences=64), "float32", adapter, sums)
    theirs = answers_of(TorchEngine(max_sequences=64, device="cpu"), "float32", adapter, sums)
    assert [answer.tokens for answer in ours] == [answer.tokens for answer in theirs]
    assert [answer.finish for answer in ours] == [answer.finish for answer in theirs]
    worst = max(
        abs(a - b)
        for x, y in zip(ours, theirs, strict=True)
        for a, b in zip(x.logprobs, y.logprobs, strict=True)
    )
    assert worst < 1e-4
    assert sum(answer.finish == "stop" for answer in ours) > 500


def test_bfloat16_differs_by_what_the_audit_allows_for(sums: list[Job], adapter: Path) -> None:
    """The margins of bfloat16 tokens under a float32 reading, as the auditor measures them."""
    from engine_models import reference

    from echo_p2p.sampling import gumbel_torch, keys_to_torch, row_keys

    jobs = sums[::8]
    policy = reference(addmix3_path(), adapter)
    margins, differences = [], []
    for job, answer in zip(
        jobs, answers_of(MlxEngine(max_sequences=64), "bfloat16", adapter, jobs), strict=True
    ):
        with torch.no_grad():
            read = torch.tensor([job.prompt + answer.tokens])
            logits = policy(input_ids=read).logits[0, len(job.prompt) - 1 : -1].float()
        keys = keys_to_torch(
            row_keys([(job.seed, job.index, i) for i in range(len(answer.tokens))])
        )
        sums_ = logits + gumbel_torch(keys, logits.shape[-1])
        tokens = torch.tensor(answer.tokens)[:, None]
        margins += (sums_.amax(-1) - sums_.gather(-1, tokens)[:, 0]).tolist()
        differences += (
            (logits.log_softmax(-1).gather(-1, tokens)[:, 0] - torch.tensor(answer.logprobs))
            .abs()
            .tolist()
        )
    differing = sum(margin > 0 for margin in margins) / len(margins)
    print(
        f"bf16: {len(margins)} tokens, {differing:.4%} differ, mean log-prob difference "
        f"{math.fsum(differences) / len(differences):.4f}, max margin {max(margins):.3f}"
    )
    assert differing < 0.01
    assert math.fsum(differences) / len(differences) < 0.01
