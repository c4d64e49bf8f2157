"""A causal language model, one forward pass at a time, over a cache whose rows come and go."""

from __future__ import annotations

import inspect
from typing import Any, cast

import torch

from echo_node.engines.base import Job
from echo_node.engines.cache import SlotCache
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
        self._kinds = _kinds_of(self.config)
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
        """Raw logits after the last of `tokens` [rows, n], which the cache has room for.

        The cache's mask covers them already; its columns are not advanced.
        """
        at, new = cache.columns, tokens.shape[1]
        mask = at.mask[:, at.start : at.end + new]
        output = self._model(
            input_ids=tokens,
            attention_mask=self._attention_mask(mask, new),
            position_ids=positions,
            use_cache=True,
            logits_to_keep=1,
            **{self._cache_argument: cache.past},
        )
        return cast("torch.Tensor", output.logits[:, -1])

    def _attention_mask(self, mask: torch.Tensor, new: int) -> Any:
        """Who sees whom: bool [rows, 1, new, columns], for each kind of layer there is."""
        full = mask[:, None, None, :]
        columns = mask.shape[1]
        place = torch.arange(columns, device=mask.device)
        asker = place[columns - new :, None]
        if new > 1:
            # what pads a row sees itself, as softmax over nothing is no number
            full = (full & (place <= asker)) | (place == asker)
        if self._kinds == {FULL}:
            return full
        assert self._window is not None
        sliding = full & (place > asker - self._window)
        return sliding if self._kinds == {SLIDING} else {FULL: full, SLIDING: sliding}


def _kinds_of(config: Any) -> set[str]:
    kinds = set(getattr(config, "layer_types", None) or ())
    if not kinds:
        kinds = {SLIDING if getattr(config, "sliding_window", None) else FULL}
    odd = kinds - {FULL, SLIDING}
    if odd:
        raise EngineError(
            f"the base model has layers of kind {', '.join(sorted(odd))}, "
            "which the torch engine does not support.",
            fix="Try another engine: --engine vllm.",
        )
    return kinds
