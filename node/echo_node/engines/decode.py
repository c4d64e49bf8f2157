"""Sampling one batch of answers with a key-value cache.

Prompts of unequal length are padded on the left. Answers to one prompt share its prefill: it runs
once and its cache is copied. What is kept of a prompt's beginning from an earlier turn is put in
front, and only the rest runs. Rows whose answer has ended leave the batch when enough of them have,
so a few long answers do not pay for the many short ones.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import Any, cast

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from echo_node.engines.base import Completion, Job
from echo_node.engines.draw import Sampler
from echo_node.engines.prefixes import Prefix, Prefixes

_DROP_SHARE = 8  # rows are dropped when one in so many has ended
_ROOM = 32  # positions the cache grows by, at least


class _GrowingLayer(DynamicLayer):  # type: ignore[misc]
    """A cache layer that writes into spare room instead of copying itself at every token."""

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        super().lazy_initialization(key_states, value_states)
        self._length = 0
        self._room = [key_states[..., :0, :], value_states[..., :0, :]]

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start, end = self._length, self._length + key_states.shape[-2]
        for i, states in enumerate((key_states, value_states)):
            if self._room[i].shape[-2] < end:
                *outer, _, width = states.shape
                larger = states.new_empty(*outer, end + max(_ROOM, end // 4), width)
                larger[..., :start, :] = self._room[i][..., :start, :]
                self._room[i] = larger
            self._room[i][..., start:end, :] = states
        self._length = end
        self.keys, self.values = (room[..., :end, :] for room in self._room)
        return self.keys, self.values

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        super().batch_select_indices(indices)
        self._room = [self.keys, self.values]


class Decoder:
    """Samples batches of answers from a causal language model.

    Args:
        prefixes: where the keys and values of answers that may go on are kept.
    """

    def __init__(self, model: Any, prefixes: Prefixes) -> None:
        self.prefixes = prefixes
        self.config = model.config.get_text_config()
        self.context: int = self.config.max_position_embeddings
        self.vocab_size: int = self.config.vocab_size
        self.device: torch.device = model.device
        self._model = model
        kinds = set(getattr(self.config, "layer_types", None) or ("full_attention",))
        self._plain_attention = kinds == {"full_attention"}
        parameters = inspect.signature(model.forward).parameters
        self.keeps = self._plain_attention
        """Whether all layers' keys and values are one a token, so that they can be kept."""
        self._cache_argument = "cache" if "cache" in parameters else "past_key_values"

    def answer_limit(self, job: Job) -> int:
        """Longest answer to a job: its own limit, or what the context leaves."""
        return min(job.sampling.max_new_tokens, self.context - len(job.prompt))

    @torch.inference_mode()
    def sample(self, jobs: Sequence[Job]) -> list[Completion]:
        """Answer jobs that share one way of drawing tokens; results in their order."""
        batch = _Batch(self, jobs)
        position = 0
        while batch.take(position):
            position += 1
            batch.forward(position)
        return batch.completions()

    def forward(
        self, tokens: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, cache: Any
    ) -> torch.Tensor:
        """Raw logits after the last of `tokens` [rows, n]; `mask` [rows, all so far] is bool."""
        # for one token a row needs no causal mask: saves transformers making one at each step
        ready = self._plain_attention and tokens.shape[1] == 1
        output = self._model(
            input_ids=tokens,
            attention_mask=mask[:, None, None, :] if ready else mask.long(),
            position_ids=positions,
            use_cache=True,
            logits_to_keep=1,
            **{self._cache_argument: cache},
        )
        return cast("torch.Tensor", output.logits[:, -1])

    def new_cache(self) -> DynamicCache:
        cache = DynamicCache(config=self.config)
        cache.layers = [
            _GrowingLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers
        ]
        return cache


class _Batch:
    """Rows being answered. `row` maps the ones still in the batch to their jobs."""

    def __init__(self, decoder: Decoder, jobs: Sequence[Job]) -> None:
        self._decoder = decoder
        self._jobs = jobs
        self._limits = [decoder.answer_limit(job) for job in jobs]
        longest = max(self._limits)
        device = decoder.device
        self._tokens = torch.zeros(len(jobs), longest, dtype=torch.long, device=device)
        self._logprobs = torch.zeros(len(jobs), longest, device=device)
        self._row = torch.arange(len(jobs), device=device)
        self._limit = torch.tensor(self._limits, device=device)
        self._stops = _padded([job.sampling.stop for job in jobs], -1, device)
        self._ended = torch.zeros(len(jobs), dtype=torch.bool, device=device)
        self._sampler = Sampler(
            [job.seed for job in jobs],
            [job.index for job in jobs],
            starts=[job.start for job in jobs],
            sampling=jobs[0].sampling,
            vocab_size=decoder.vocab_size,
            device=device,
        )
        self._prefill()

    def _prefill(self) -> None:
        """Run what is new in each different prompt once, and give every row its copy."""
        number: dict[tuple[int, ...], int] = {}
        which = [number.setdefault(tuple(job.prompt), len(number)) for job in self._jobs]
        device = self._row.device
        self._cache = self._decoder.new_cache()
        kept = self._kept_of(number, which)
        old = _fill(self._cache, kept, device)
        new = [
            prompt[len(one.tokens) if one else 0 :]
            for prompt, one in zip(number, kept, strict=True)
        ]
        self._decoder.prefixes.read += sum(map(len, new))
        tokens = _padded([prompt[::-1] for prompt in new], -1, device).flip(1)
        mask = torch.cat([old, tokens >= 0], 1)
        positions = (mask.cumsum(1) - 1).clamp(min=0)[:, old.shape[1] :]
        logits = self._decoder.forward(tokens.clamp(min=0), mask, positions, self._cache)
        rows = torch.tensor(which, device=device)
        self._cache.batch_select_indices(rows)
        self._logits = logits[rows]
        self._position = positions[rows, -1:]
        self._padded = mask.shape[1]
        self._mask = torch.nn.functional.pad(mask[rows], (0, self._tokens.shape[1]), value=True)

    def _kept_of(
        self, prompts: Iterable[tuple[int, ...]], which: Sequence[int]
    ) -> list[Prefix | None]:
        """What is kept of each different prompt, by the first of its jobs that has something."""
        prefixes = self._decoder.prefixes
        found: list[Prefix | None] = [None for _ in prompts]
        for job, number in zip(self._jobs, which, strict=True):
            one = prefixes.take((job.seed, job.index), job.prompt)
            if found[number] is None and one is not None:
                found[number] = one
                prefixes.reused += len(one.tokens)
        return found

    def take(self, position: int) -> bool:
        """Draw each row's token at `position` of its answer; whether any row goes on."""
        tokens = self._sampler.draw(self._logits, position)
        logprobs = self._logits.float().log_softmax(-1).gather(-1, tokens[:, None])
        self._tokens[self._row, position] = tokens
        self._logprobs[self._row, position] = logprobs[:, 0]
        self._ended |= (tokens[:, None] == self._stops).any(1) | (self._limit <= position + 1)
        self._drawn = tokens
        ended = int(self._ended.sum())
        if ended == len(tokens):
            self._store(position)
            return False
        if ended * _DROP_SHARE >= len(tokens):
            self._store(position)
            self._go_on_with(torch.nonzero(~self._ended)[:, 0])
        return True

    def _store(self, position: int) -> None:
        """Keep the keys and values of the rows that have ended and may go on."""
        if not self._decoder.keeps:
            return
        for place in torch.nonzero(self._ended)[:, 0].tolist():
            row = int(self._row[place])
            job = self._jobs[row]
            if job.keep:
                # its last token was drawn and never read
                answer = self._tokens[row, : position + 1].tolist()
                answer = _completion(job, answer[: self._limits[row]], []).tokens[:-1]
                slots = torch.nonzero(self._mask[place, : self._padded + len(answer)])[:, 0]
                layers = [
                    (layer.keys[place][:, slots], layer.values[place][:, slots])
                    for layer in self._cache.layers
                ]
                prefix = Prefix([*job.prompt, *answer], layers)
                self._decoder.prefixes.put((job.seed, job.index), prefix)

    def _go_on_with(self, rows: torch.Tensor) -> None:
        self._sampler.keep(rows)
        self._cache.batch_select_indices(rows)
        for name in ("_row", "_limit", "_stops", "_ended", "_position", "_mask", "_drawn"):
            setattr(self, name, getattr(self, name)[rows])

    def forward(self, position: int) -> None:
        """Feed the tokens drawn at `position - 1`."""
        length = self._padded + position
        # a row that has ended but is still here must not run past the model's last position
        positions = (self._position + position).clamp(max=self._decoder.context - 1)
        self._logits = self._decoder.forward(
            self._drawn[:, None], self._mask[:, :length], positions, self._cache
        )

    def completions(self) -> list[Completion]:
        tokens, logprobs = self._tokens.tolist(), self._logprobs.tolist()
        return [
            _completion(job, tokens[i][:limit], logprobs[i])
            for i, (job, limit) in enumerate(zip(self._jobs, self._limits, strict=True))
        ]


def _fill(cache: DynamicCache, kept: Sequence[Prefix | None], device: torch.device) -> torch.Tensor:
    """Put what is kept of each row into an empty cache, on the right; returns where: bool."""
    width = max(len(one.tokens) if one else 0 for one in kept)
    mask = torch.zeros(len(kept), width, dtype=torch.bool, device=device)
    some = next((one for one in kept if one), None)
    if some is None:
        return mask
    for number, (key, value) in enumerate(some.layers):
        states = [
            part.new_zeros(len(kept), part.shape[0], width, part.shape[2]) for part in (key, value)
        ]
        for row, one in enumerate(kept):
            if one is not None:
                for part, state in zip(one.layers[number], states, strict=True):
                    state[row, :, width - len(one.tokens) :] = part
        cache.layers[number].update(*states)
    for row, one in enumerate(kept):
        mask[row, width - (len(one.tokens) if one else 0) :] = True
    return mask


def _completion(job: Job, tokens: list[int], logprobs: list[float]) -> Completion:
    for length, token in enumerate(tokens, start=1):
        if token in job.sampling.stop:
            return Completion(tokens[:length], logprobs[:length], "stop")
    return Completion(tokens, logprobs[: len(tokens)], "length")


def _padded(rows: Sequence[Sequence[int]], filler: int, device: torch.device) -> torch.Tensor:
    """Rows of unequal length as one int64 tensor, filled up on the right; at least one column."""
    width = max([1, *map(len, rows)])
    filled = [[*row, *[filler] * (width - len(row))] for row in rows]
    return torch.tensor(filled, dtype=torch.long, device=device)
