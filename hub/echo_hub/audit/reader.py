"""Reads answers with a policy as cheaply as it can be done, and leaves the policy as it was.

An adapter is merged into the base's weights for the length of a block, by the arithmetic that nodes
merge with, so that in bfloat16 too both compute with the same weights; a version that is a whole
model takes the place of the weights. The prompt of a group runs once, and its keys and values are
shared by all answers; groups whose prompts are equally long share a pass.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import DynamicCache

from echo_hub.learner.adapters import WholeModel, lora_layers
from echo_hub.learner.policy import Policy
from echo_p2p.errors import LearnerError

_ADAPTER = "default"


class Reader:
    """A policy's base with whatever adapter is asked for."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        causal: Any = policy.causal
        self._decoder: Any = causal.get_decoder()
        self._device = next(causal.parameters()).device
        self._places = [
            (name, causal.get_submodule(name.rpartition(".")[0]), layer)
            for name, layer in lora_layers(causal)
        ]
        parameters = inspect.signature(self._decoder.forward).parameters
        self._cache_argument = "cache" if "cache" in parameters else "past_key_values"
        self._last: tuple[Path, list[torch.Tensor]] | None = None
        self._last_whole: tuple[Path, dict[str, torch.Tensor]] | None = None

    @contextmanager
    def wearing(self, adapter: Path) -> Iterator[None]:
        """Within the block the policy is the base with this adapter merged, or this whole model."""
        if isinstance(self._policy.adapter, WholeModel):
            with self._policy.wearing(self._read(adapter)):
                yield
            return
        if self._policy.sharded:
            with self._merging(self._policy.read_adapter(adapter)):
                yield
            return
        merged = self._merge(adapter)
        bases = [layer.get_base_layer() for _, _, layer in self._places]
        own = [base.weight.data for base in bases]
        try:
            for (name, parent, _), base, weight in zip(self._places, bases, merged, strict=True):
                base.weight.data = weight
                setattr(parent, name.rpartition(".")[2], base)
            yield
        finally:
            for (name, parent, layer), base, weight in zip(self._places, bases, own, strict=True):
                base.weight.data = weight
                setattr(parent, name.rpartition(".")[2], layer)

    @contextmanager
    def _merging(self, tensors: Mapping[str, torch.Tensor]) -> Iterator[None]:
        """Within the block each layer merges the adapter for itself, whenever it is used: only then
        are the weights of a sharded base there."""
        try:
            for name, parent, layer in self._places:
                setattr(parent, name.rpartition(".")[2], _MergedWhenUsed(name, layer, tensors))
            yield
        finally:
            for name, parent, layer in self._places:
                setattr(parent, name.rpartition(".")[2], layer)

    def answers(
        self, groups: Sequence[tuple[Sequence[int], Sequence[Sequence[int]]]]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Hidden states [N, H] that predict the N answer tokens, laid end to end, and those [N].

        Args:
            groups: prompts, all of one length, each with its answers.
        """
        if not all(prompt and all(answers) for prompt, answers in groups):
            raise LearnerError("a prompt or an answer is empty.")
        first = torch.tensor([list(prompt) for prompt, _ in groups])
        rows = [row for _, answers in groups for row in answers]
        width = max(map(len, rows))
        padded = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows])
        lengths = torch.tensor([len(row) for row in rows])
        vocabulary = self._policy.vocab_size
        if min(int(first.min()), int(padded.min())) < 0 or vocabulary <= max(
            int(first.max()), int(padded.max())
        ):
            raise LearnerError("a sequence has a token id that is not in the vocabulary.")
        cache = DynamicCache(config=self._decoder.config)
        counts = torch.tensor([len(answers) for _, answers in groups])
        prompt_of = torch.arange(len(groups)).repeat_interleave(counts).to(self._device)
        hidden = self._run(first, cache)[prompt_of, -1:]
        if width > 1:
            cache.batch_select_indices(prompt_of)
            hidden = torch.cat([hidden, self._run(padded[:, :-1], cache)], 1)
        inside = torch.arange(width)[None] < lengths[:, None]
        return hidden[inside.to(hidden.device)], padded[inside].to(hidden.device)

    def _run(self, tokens: torch.Tensor, cache: DynamicCache) -> torch.Tensor:
        found = self._decoder(
            input_ids=tokens.to(self._device), use_cache=True, **{self._cache_argument: cache}
        )
        hidden: torch.Tensor = found.last_hidden_state
        return hidden

    def _read(self, version: Path) -> dict[str, torch.Tensor]:
        """A whole model; the last one is kept."""
        if self._last_whole is None or self._last_whole[0] != version:
            self._last_whole = None
            self._last_whole = (version, self._policy.read_adapter(version))
        return self._last_whole[1]

    def _merge(self, adapter: Path) -> list[torch.Tensor]:
        """Merged weights, in the order of the places; those of the last adapter are kept."""
        if self._last is None or self._last[0] != adapter:
            self._last = None  # its memory is needed for the next
            tensors = self._policy.read_adapter(adapter)
            weights = [_merged(name, layer, tensors) for name, _, layer in self._places]
            self._last = (adapter, weights)
        return self._last[1]


class _MergedWhenUsed(torch.nn.Module):
    """A layer as its base with an adapter merged, which is never kept."""

    def __init__(self, name: str, layer: Any, tensors: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        self._of = (name, layer, tensors)  # in a tuple, so that it is no child of this module

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        name, layer, tensors = self._of
        weight = _merged(name, layer, tensors)
        return torch.nn.functional.linear(inputs, weight, layer.get_base_layer().bias)


def _merged(name: str, layer: Any, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    weight: torch.Tensor = layer.get_base_layer().weight.data
    a = tensors[f"base_model.model.{name}.lora_A.weight"]
    b = tensors[f"base_model.model.{name}.lora_B.weight"]
    scale: float = layer.scaling[_ADAPTER]
    return (weight + (b @ a) * scale).to(weight.dtype)
