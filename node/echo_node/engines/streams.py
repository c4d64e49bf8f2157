"""Noise streams of answers that come and go, each in a slot, as `echo_p2p.sampling` defines them.

Promise: a token is the one that `sampling.sample` draws with its row's key, bit for bit, whichever
rows it is drawn with. At a small vocabulary the noise of several positions of a slot is computed at
once, since there the number of array operations costs more than the arithmetic.
"""

from __future__ import annotations

from typing import Any, NamedTuple

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

_MOST_POSITIONS = 64
_KEPT_ELEMENTS = 1 << 22  # of noise, over all slots: 16 MiB
_NOWHERE = -(1 << 40)

Ints = np.ndarray[Any, np.dtype[np.int64]]


class Stream(NamedTuple):
    """One answer's noise and how its tokens are drawn; its first one has position `start`."""

    seed: int
    rollout: int
    start: int
    temperature: float
    top_k: int
    top_p: float


class Streams:
    """Up to `slots` streams at a time, numbered from 0."""

    def __init__(self, slots: int, vocab_size: int, device: torch.device | str) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._seed = np.zeros(slots, dtype=np.uint64)
        self._index = np.zeros(slots, dtype=np.uint64)
        self._start = np.zeros(slots, dtype=np.int64)
        self._how = np.zeros(slots, dtype=np.int64)
        self._ways: list[tuple[float, int, float]] = []
        self._span = 0
        if vocab_size <= SMALL_VOCABULARY:
            self._span = max(1, min(_MOST_POSITIONS, _KEPT_ELEMENTS // (slots * vocab_size)))
        self._noise = torch.zeros(slots, self._span, vocab_size, device=device)
        self._ready = np.full(slots, _NOWHERE)  # first position that `_noise` has of a slot

    def put(self, slot: int, stream: Stream) -> None:
        """Begin a stream in a slot, whatever was there."""
        way = (stream.temperature, stream.top_k, stream.top_p)
        if way not in self._ways:
            self._ways.append(way)
        self._seed[slot], self._index[slot] = stream.seed, stream.rollout
        self._start[slot], self._how[slot] = stream.start, self._ways.index(way)
        self._ready[slot] = _NOWHERE

    def move(self, source: int, target: int, *, swap: bool = False) -> None:
        """Move a stream into another slot; with `swap` the one there comes into its place."""
        pair, other = [source, target], [target, source]
        for part in (self._seed, self._index, self._start, self._how):
            if swap:
                part[pair] = part[other]
            else:
                part[target] = part[source]
        self._ready[pair] = _NOWHERE

    def draw(self, logits: torch.Tensor, slots: Ints, positions: Ints) -> torch.Tensor:
        """Tokens, int64 [rows], from raw logits [rows, vocab] of these slots.

        Args:
            positions: how many tokens of the answer there are already, a row.
        """
        at = self._start[slots] + positions
        noise = self._noise_at(slots, at) if self._span else None
        keys = None if self._span else self._keys(slots, at)
        ways = np.unique(self._how[slots])
        if len(ways) == 1:
            return self._drawn(logits, keys, noise, int(ways[0]))
        tokens = torch.empty(len(slots), dtype=torch.int64, device=logits.device)
        for way in ways.tolist():
            rows = torch.from_numpy(np.nonzero(self._how[slots] == way)[0]).to(logits.device)
            tokens[rows] = self._drawn(
                logits[rows],
                None if keys is None else keys[rows],
                None if noise is None else noise[rows],
                way,
            )
        return tokens

    def _drawn(
        self, logits: torch.Tensor, keys: torch.Tensor | None, noise: torch.Tensor | None, way: int
    ) -> torch.Tensor:
        if noise is not None:
            return perturbed(logits, noise, *self._ways[way]).argmax(-1)
        assert keys is not None
        return sample(logits, keys, *self._ways[way])

    def _keys(self, slots: Ints, at: Ints) -> torch.Tensor:
        keys = keys_at(self._seed[slots], self._index[slots], at.astype(np.uint64))
        return keys_to_torch(keys, self._device)

    def _noise_at(self, slots: Ints, at: Ints) -> torch.Tensor:
        """Noise of each row, float32 [rows, vocab]."""
        ahead = at - self._ready[slots]
        missing = (ahead < 0) | (ahead >= self._span)
        if missing.any():
            self._compute(slots[missing], at[missing])
            ahead = at - self._ready[slots]
        rows, places = (torch.from_numpy(part).to(self._device) for part in (slots, ahead))
        return self._noise[rows, places]

    def _compute(self, slots: Ints, at: Ints) -> None:
        positions = (at[:, None] + np.arange(self._span)).astype(np.uint64)
        keys = keys_at(self._seed[slots, None], self._index[slots, None], positions)
        flat = keys_to_torch(keys.reshape(-1, 2), self._device)
        noise = gumbel_torch(flat, self._vocab_size)
        self._noise[torch.from_numpy(slots).to(self._device)] = noise.view(
            len(slots), self._span, self._vocab_size
        )
        self._ready[slots] = at
