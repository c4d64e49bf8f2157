"""What the learner's tests share: the packaged policy, a plain sampling loop, scored groups."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from echo_hub.config import RunConfig
from echo_hub.learner.messages import TrainGroup, TrainRollout
from echo_hub.learner.policy import Policy
from echo_hub.models import addmix3_path
from echo_hub.models.make_addmix3 import MAX_ANSWER_TOKENS, VOCABULARY, encode
from echo_p2p.sampling import gumbel_torch, keys_to_torch, perturbed, row_keys

torch.set_num_threads(1)

EOS = VOCABULARY["<eos>"]
TOKENS = list(VOCABULARY)


def make_config(**sections: dict[str, Any]) -> RunConfig:
    """A run on addmix3; keyword arguments are laid over its sections."""
    learner = {"groups_per_update": 16, **sections.pop("learner", {})}
    return RunConfig.model_validate(
        {
            "run": {"id": "test"},
            "sampling": {"max_new_tokens": MAX_ANSWER_TOKENS},
            "learner": learner,
            **sections,
        }
    )


def load_policy(config: RunConfig) -> Policy:
    return Policy.load(
        addmix3_path(), config.learner, dtype=config.base.dtype, seed=config.run.seed
    )


@dataclass(frozen=True)
class Sampled:
    """The answers to one prompt, drawn with one lease seed."""

    prompt: list[int]
    seed: int
    answers: list[list[int]]
    logprobs: list[list[float]]


@torch.no_grad()
def sample_groups(
    policy: Policy,
    prompts: Sequence[str],
    *,
    seeds: Sequence[int],
    group_size: int = 8,
    temperature: float = 1.0,
    greedy: bool = False,
) -> list[Sampled]:
    """Sample prompts of one length in the plainest way: no padding, a row a rollout, a KV cache."""
    rows = [(seed, index) for seed in seeds for index in range(group_size)]
    ids = torch.tensor([encode(prompt) for prompt in prompts for _ in range(group_size)])
    tokens: list[list[int]] = [[] for _ in rows]
    logprobs: list[list[float]] = [[] for _ in rows]
    cache = None
    for position in range(MAX_ANSWER_TOKENS):
        out = policy.causal(input_ids=ids, past_key_values=cache, use_cache=True)
        cache, logits = out.past_key_values, out.logits[:, -1]
        keys = keys_to_torch(row_keys([(seed, index, position) for seed, index in rows]))
        noise = 0 if greedy else gumbel_torch(keys, logits.shape[-1])
        ids = perturbed(logits, noise, temperature).argmax(-1, keepdim=True)
        chosen = logits.log_softmax(-1).gather(-1, ids)
        for row, (token, logprob) in enumerate(
            zip(ids[:, 0].tolist(), chosen[:, 0].tolist(), strict=True)
        ):
            if EOS not in tokens[row]:
                tokens[row].append(token)
                logprobs[row].append(logprob)
    return [
        Sampled(
            encode(prompt),
            seed,
            tokens[i * group_size : (i + 1) * group_size],
            logprobs[i * group_size : (i + 1) * group_size],
        )
        for i, (prompt, seed) in enumerate(zip(prompts, seeds, strict=True))
    ]


def seeded_groups(
    policy: Policy, rng: random.Random, count: int, *, group_size: int = 8, **how: Any
) -> list[Sampled]:
    """Sample `count` random prompts, each with a seed of its own."""
    seeds = [rng.randrange(2**63) for _ in range(count)]
    return sample_groups(
        policy, random_prompts(rng, count), seeds=seeds, group_size=group_size, **how
    )


def random_prompts(rng: random.Random, count: int) -> list[str]:
    return [f"{rng.randrange(100, 1000)}+{rng.randrange(100, 1000)}=" for _ in range(count)]


def reward(prompt: Sequence[int], answer: Sequence[int]) -> float:
    a, b = "".join(TOKENS[i] for i in prompt).rstrip("=").split("+")
    text, _, _ = "".join(TOKENS[i] for i in answer).partition("<eos>")
    return float(text.rpartition(">")[2] == str(int(a) + int(b)))


def scored(sampled: Sampled, version: int) -> TrainGroup:
    return TrainGroup(
        version,
        sampled.prompt,
        [
            TrainRollout(answer, logprobs, reward(sampled.prompt, answer))
            for answer, logprobs in zip(sampled.answers, sampled.logprobs, strict=True)
        ],
    )
