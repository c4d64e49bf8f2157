"""A causal language model, one forward pass at a time, over a cache whose rows come and go.

The pass is `lean.Lean` where that suits the model, and the model's own otherwise.
"""

from __future__ import annotations

import inspect
from typing import Any, cast

import torch

from echo_node.engines.base import Job
from echo_node.engines.cache import SlotCache
from echo_node.engines.lean import Lean, suits
from echo_p2p.errors import EngineError

FULL, SLIDING = "full_attention", "sliding_attention"


class Decoder:
    """What is needed of a model to sample from it. EngineError: of a kind that is not supported."""

    def __init__(self, model: Any) -> None:
        self.config = model.config.get_text_config()
        self.context: int = self.config.max_position_embeddings
        self.vocab_size: int = self.config.vocab_size
        self.device: torch.device = model.device
        self._model = model
        self._window = getattr(self.config, "sliding_window", None)
        layers = _layers_of(self.config)
        self._kinds = set(layers)
        self._lean = Lean(model, layers) if suits(model) else None
        parameters = inspect.signature(model.forward).parameters
        self._cache_argument = "cache" if "cache" in parameters else "past_key_values"

    def answer_limit(self, job: Job) -> int:
        """Longest answer to a job: its own limit, or what the context leaves."""
        return min(job.sampling.max_new_tokens, self.context - len(job.prompt))

    def new_cache(self) -> SlotCache:
        return SlotCache(self.config, self.device)

    def forward(
        self, tokens: torch.Tensor, positions: torch.Tensor, cache: SlotCache
    ) -> torch.Tensor:
        """Raw logits after the last of `tokens` [rows, n]; see `logits`."""
        return self.logits(tokens, positions, cache, 1)[:, -1]

    def logits(
        self, tokens: torch.Tensor, positions: torch.Tensor, cache: SlotCache, keep: int
    ) -> torch.Tensor:
        """Raw logits after the last `keep` of `tokens` [rows, n], which the cache has room for.

        The cache's mask covers them already; its columns are not advanced.
        """
        at, new = cache.columns, tokens.shape[1]
        masks = self._masks(at.mask[:, at.start : at.end + new], new)
        if self._lean is not None:
            return self._lean(tokens, positions, masks, cache, keep)
        output = self._model(
            input_ids=tokens,
            attention_mask=masks if len(masks) > 1 else next(iter(masks.values())),
            position_ids=positions,
            use_cache=True,
            logits_to_keep=keep,
            **{self._cache_argument: cache.past},
        )
        return cast("torch.Tensor", output.logits)

    def _masks(self, mask: torch.Tensor, new: int) -> dict[str, torch.Tensor]:
        """Who sees whom: bool [rows, 1, new, columns], for each kind of layer there is."""
        full = mask[:, None, None, :]
        if new == 1 and self._kinds == {FULL}:
            return {FULL: full}
        columns = mask.shape[1]
        place = torch.arange(columns, device=mask.device)
        asker = place[columns - new :, None]
        if new > 1:
            # what pads a row sees itself, as softmax over nothing is no number
            full = (full & (place <= asker)) | (place == asker)
        masks = {FULL: full} if FULL in self._kinds else {}
        if SLIDING in self._kinds:
            assert self._window is not None
            # a window counts a row's own tokens: between them may be columns that only pad
            token = mask.cumsum(1)[:, None, None, :]
            masks[SLIDING] = full & (token > token[..., columns - new :].mT - self._window)
        return masks


def _layers_of(config: Any) -> list[str]:
    """The kind of each layer."""
    kinds = list(getattr(config, "layer_types", None) or ())
    if not kinds:
        kind = SLIDING if getattr(config, "sliding_window", None) else FULL
        kinds = [kind] * config.num_hidden_layers
    odd = set(kinds) - {FULL, SLIDING}
    if odd:
        raise EngineError(
            f"the base model has layers of kind {', '.join(sorted(odd))}, "
            "which the torch engine does not support.",
            fix="Try another engine: --engine vllm.",
        )
    return kinds
