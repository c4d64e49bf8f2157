"""The seeded sampler inside vLLM, for both of its model runners.

vLLM decodes greedily; a custom logits processor draws each row's token as `echo_p2p.sampling` says
and raises its logit above all others. Promises: a token is the one that `sampling.sample` draws
from the raw logits; a row that is not ours (vLLM's own warm-up) is left as it is; the
log-probabilities that vLLM reports are taken before, so they stay raw.

vLLM has two interfaces for this. `SeededV1` is for the older model runner: its rows are the batch,
and it is told how the batch changes. `SeededV2` is for the newer one: requests keep a slot, and
each step says which slots its rows are. Which of them runs is vLLM's choice: see `vllm_core`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate, MoveDirectionality
from vllm.v1.sample.logits_processor import LogitsProcessor as ProcessorV1
from vllm.v1.worker.gpu.sample.logits_processor import LogitsContext, LogitsProcRequestState
from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor as ProcessorV2

from echo_node.engines.carried import KEY
from echo_node.engines.streams import Stream, Streams

_WON = torch.finfo(torch.float32).max


def stream_of(params: SamplingParams) -> tuple[Stream, int] | None:
    """The stream and the number of prompt tokens that `carried` put there."""
    given = (params.extra_args or {}).get(KEY)
    return None if given is None else (Stream(*given[:-1]), given[-1])


def _let_win(logits: torch.Tensor, rows: Sequence[int], tokens: torch.Tensor) -> None:
    logits[torch.as_tensor(rows, device=logits.device), tokens] = _WON


class SeededV1(ProcessorV1):  # type: ignore[misc]
    """For the older model runner: row i is the batch's request i."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        vocab_size = vllm_config.model_config.get_vocab_size()
        most = vllm_config.scheduler_config.max_num_seqs
        self._streams = Streams(most, vocab_size, device)
        self._answers: dict[int, Sequence[int]] = {}  # by row; vLLM lengthens them

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        if batch_update is None:
            return
        for row in batch_update.removed:
            self._answers.pop(row, None)
        for row, params, _, answer in batch_update.added:
            self._answers.pop(row, None)
            if (ours := stream_of(params)) is not None:
                self._streams.put(row, ours[0])
                self._answers[row] = answer
        for source, target, direction in batch_update.moved:
            swapped = direction == MoveDirectionality.SWAP
            self._streams.move(source, target, swap=swapped)
            moved, replaced = (self._answers.pop(row, None) for row in (source, target))
            if moved is not None:
                self._answers[target] = moved
            if swapped and replaced is not None:
                self._answers[source] = replaced

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        rows = [row for row in range(len(logits)) if row in self._answers]
        if rows:
            positions = [len(self._answers[row]) for row in rows]
            ours = logits if len(rows) == len(logits) else logits[rows]
            _let_win(logits, rows, self._streams.draw(ours, np.array(rows), np.array(positions)))
        return logits


class SeededV2(ProcessorV2):  # type: ignore[misc]
    """For the newer model runner: a request has a slot, and each step's rows name theirs."""

    def __init__(self, vllm_config: Any, req_states: LogitsProcRequestState) -> None:
        self._streams = Streams(req_states.max_num_reqs, req_states.vocab_size, req_states.device)
        self._prompts = np.full(req_states.max_num_reqs, -1, dtype=np.int64)  # -1: not ours

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
        ours = stream_of(sampling_params)
        self._prompts[req_idx] = -1
        if ours is not None:
            self._streams.put(req_idx, ours[0])
            self._prompts[req_idx] = ours[1]
        return ours is not None

    def apply(self, logits: torch.Tensor, ctx: LogitsContext) -> torch.Tensor:
        slots = ctx.idx_mapping_np.astype(np.int64)
        assert len(slots) == len(logits), "one row a request: there is no speculative decoding"
        rows = np.nonzero(self._prompts[slots] >= 0)[0]
        if len(rows):
            slots = slots[rows]
            # negative while a long prompt is still being read: nothing is sampled from that row
            positions = (ctx.seq_lens_upper_bound_np[rows] - self._prompts[slots]).clip(min=0)
            ours = logits if len(rows) == len(logits) else logits[rows.tolist()]
            _let_win(logits, rows.tolist(), self._streams.draw(ours, slots, positions))
        return logits
