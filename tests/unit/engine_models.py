"""Tiny random models and adapters for the engine's tests, and what they must sample."""

from __future__ import annotations

from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import (
    AutoModelForCausalLM,
    GraniteConfig,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from echo_node.engines.base import Completion, Job
from echo_p2p.sampling import keys_to_torch, row_keys, sample

VOCAB = 61
CONTEXT = 96
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]

_SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def configs() -> dict[str, PretrainedConfig]:
    """Architectures to test: full attention with biases in some, all or no layers, norms of heads,
    sliding windows in some or all layers, and one that the torch engine has no pass of its own for.
    """
    biases = {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False}
    return {
        "qwen2": Qwen2Config(**_SIZES),
        "llama": LlamaConfig(**_SIZES),
        "llama-biases": LlamaConfig(**{**_SIZES, **biases, "head_dim": 12}),
        "qwen3": Qwen3Config(**_SIZES, head_dim=16),
        "mistral": MistralConfig(**_SIZES, sliding_window=9),
        "granite": GraniteConfig(**_SIZES, residual_multiplier=0.5, embedding_multiplier=3.0),
        "sliding": Qwen2Config(
            **_SIZES, use_sliding_window=True, sliding_window=6, max_window_layers=1
        ),
    }


def make_base(folder: Path, architecture: str = "qwen2") -> Path:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(configs()[architecture])
    for parameter in model.parameters():
        if parameter.dim() == 2:
            parameter.data.mul_(4.0)  # less flat than the initialisation
        else:  # biases and norms: not 0 and 1
            parameter.data.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(folder)
    return folder


def make_adapter(base: Path, folder: Path, seed: int, **config: object) -> Path:
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    shape = {"r": 4, "lora_alpha": 8, "target_modules": TARGETS, "task_type": "CAUSAL_LM"}
    adapted = get_peft_model(model, LoraConfig(**{**shape, **config}))
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    adapted.save_pretrained(folder)
    return folder


def reference(base: Path, adapter: Path) -> PeftModel:
    """The policy as PEFT itself computes it, unmerged."""
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    return PeftModel.from_pretrained(model, adapter).eval()


@torch.no_grad()
def check_completion(policy: torch.nn.Module, job: Job, answer: Completion) -> None:
    """Derive an answer again by one plain forward pass, without padding, batch or cache."""
    tokens = torch.tensor([job.prompt + answer.tokens])
    count = len(answer.tokens)
    logits = policy(input_ids=tokens).logits[0, len(job.prompt) - 1 : -1].float()
    keys = keys_to_torch(row_keys([(job.seed, job.index, i) for i in range(count)]))
    assert sample(logits, keys, job.sampling.temperature).tolist() == answer.tokens
    expected = logits.log_softmax(-1).gather(-1, torch.tensor(answer.tokens)[:, None])[:, 0]
    assert (expected - torch.tensor(answer.logprobs)).abs().max() < 1e-4
    limit = min(job.sampling.max_new_tokens, CONTEXT - len(job.prompt))
    stops = [i for i, token in enumerate(answer.tokens) if token in job.sampling.stop]
    if answer.finish == "stop":
        assert stops == [count - 1]
    else:
        assert not stops
        assert count == limit
