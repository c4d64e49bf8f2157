"""Drawing tokens for a batch of answers, position after position, as `echo_p2p.sampling` says.

Promise: the tokens are those of `sampling.sample` with each row's key, bit for bit. At a small
vocabulary the noise of several positions is computed at once, since there the number of array
operations costs more than the arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from echo_p2p.sampling import (
    SMALL_VOCABULARY,
    gumbel_torch,
    keys_at,
    keys_to_torch,
    perturbed,
    sample,
)
from echo_p2p.wire import Sampling

_POSITIONS = 64
_NOISE_ELEMENTS = 1 << 15  # what stays in a core's cache


class Sampler:
    """The noise streams of a batch of answers; row i begins at its position `starts[i]`."""

    def __init__(
        self,
        seeds: Sequence[int],
        indices: Sequence[int],
        *,
        starts: Sequence[int] | None = None,
        sampling: Sampling,
        vocab_size: int,
        device: torch.device | str,
    ) -> None:
        self._seeds = np.asarray(seeds, dtype=np.uint64)
        self._indices = np.asarray(indices, dtype=np.uint64)
        self._starts = np.asarray(starts or [0] * len(seeds), dtype=np.uint64)
        self._how = (sampling.temperature, sampling.top_k, sampling.top_p)
        self._vocab_size = vocab_size
        self._device = device
        self._small = vocab_size <= SMALL_VOCABULARY
        self._ready = range(0)  # positions whose keys, and noise if small, are at hand
        self._keys = self._noise = torch.empty(0)

    def draw(self, logits: torch.Tensor, position: int) -> torch.Tensor:
        """The token of each row, `position` after its start, from its raw logits: int64 [rows]."""
        if position not in self._ready:
            self._prepare(position)
        at = position - self._ready.start
        if self._small:
            return perturbed(logits, self._noise[at], *self._how).argmax(-1)
        return sample(logits, self._keys[at], *self._how)

    def keep(self, rows: torch.Tensor) -> None:
        """Go on with these rows only, in this order."""
        chosen = rows.cpu().numpy()
        self._seeds, self._indices = self._seeds[chosen], self._indices[chosen]
        self._starts = self._starts[chosen]
        if self._ready:
            self._keys = self._keys[:, rows]
            self._noise = self._noise[:, rows] if self._small else self._noise

    def _prepare(self, position: int) -> None:
        count = _POSITIONS
        if self._small:
            count = min(count, max(1, _NOISE_ELEMENTS // (len(self._seeds) * self._vocab_size)))
        self._ready = range(position, position + count)
        positions = np.arange(position, position + count, dtype=np.uint64)[:, None]
        keys = keys_at(self._seeds[None], self._indices[None], self._starts[None] + positions)
        self._keys = keys_to_torch(keys, self._device)
        if self._small:
            noise = gumbel_torch(self._keys.reshape(-1, 2), self._vocab_size)
            self._noise = noise.view(count, len(self._seeds), self._vocab_size)
