"""Drawing tokens for rows that come and go, step after step, as `echo_p2p.sampling` says.

Promise: the tokens are those of `sampling.sample` with each row's key, bit for bit. Noise, or at a
large vocabulary its keys, is made for several steps at once, since the number of array operations
costs more than the arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from echo_p2p.wire import Sampling

_STEPS = 64
_NOISE_ELEMENTS = 1 << 15  # what stays in a core's cache


class Stream(NamedTuple):
    """A row's noise: seed, number in the group, and the position that is drawn next."""

    seed: int
    rollout: int
    position: int


class Way(NamedTuple):
    """How a row's tokens are drawn from its noise."""

    temperature: float
    top_k: int
    top_p: float

    @classmethod
    def of(cls, sampling: Sampling) -> Way:
        return cls(sampling.temperature, sampling.top_k, sampling.top_p)


class Sampler:
    """The noise streams of the rows of a batch. Each `draw` takes one step in all of them."""

    def __init__(self, *, vocab_size: int, device: torch.device | str) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._small = vocab_size <= SMALL_VOCABULARY
        self._streams = np.zeros((3, 0), dtype=np.uint64)
        self._ways: list[Way] = []
        self._rows_by_way: list[tuple[Way, torch.Tensor | None]] = []
        self._at = self._steps = 0  # of what is ready, the step that is drawn next, and all
        self._keys = self._noise = torch.empty(0)

    def draw(self, logits: torch.Tensor) -> torch.Tensor:
        """The next token of each row, from its raw logits: int64 [rows]."""
        if self._at == self._steps:
            self._prepare()
        at = self._at
        self._at += 1
        noise = (self._noise if self._small else self._keys)[at]
        if len(self._rows_by_way) == 1:
            return self._drawn(logits, noise, self._rows_by_way[0][0])
        tokens = torch.zeros(len(logits), dtype=torch.int64, device=logits.device)
        for way, rows in self._rows_by_way:
            tokens[rows] = self._drawn(logits[rows], noise[rows], way)
        return tokens

    def _drawn(self, logits: torch.Tensor, noise: torch.Tensor, way: Way) -> torch.Tensor:
        if self._small:
            return perturbed(logits, noise, *way).argmax(-1)
        return sample(logits, noise, *way)

    def select(self, rows: Sequence[int]) -> None:
        """Go on with these rows only, in this order; one may be there several times."""
        self._streams = self._streams[:, list(rows)]
        self._ways = [self._ways[row] for row in rows]
        self._group()
        if self._at < self._steps:
            chosen = torch.tensor(rows, device=self._device)
            self._keys = self._keys[:, chosen]
            self._noise = self._noise[:, chosen] if self._small else self._noise

    def replace(self, rows: Sequence[int], streams: Sequence[Stream], ways: Sequence[Way]) -> None:
        """Begin other streams in these rows; rows behind the last one are new."""
        more = max(rows) + 1 - len(self._ways)
        if more > 0:
            self._streams = np.concatenate([self._streams, np.zeros((3, more), np.uint64)], 1)
            self._ways += [ways[0]] * more
            self._steps = self._at  # it is made anew, for all
        chosen: Any = np.array(streams, dtype=np.uint64).T
        for row, way in zip(rows, ways, strict=True):
            self._ways[row] = way
        self._group()
        self._streams[:, list(rows)] = chosen
        self._streams[2, list(rows)] -= np.uint64(self._at)  # as if there from the first step on
        if self._at < self._steps:
            keys = self._keys_of(self._streams[:, list(rows)], self._at, self._steps)
            places = torch.tensor(rows, device=self._device)
            self._keys[self._at :, places] = keys
            if self._small:
                self._noise[self._at :, places] = self._noise_of(keys)

    def _group(self) -> None:
        if len(set(self._ways)) == 1:
            self._rows_by_way = [(self._ways[0], None)]
            return
        self._rows_by_way = [
            (
                way,
                torch.tensor(
                    [i for i, w in enumerate(self._ways) if w == way], device=self._device
                ),
            )
            for way in dict.fromkeys(self._ways)
        ]

    def _prepare(self) -> None:
        steps = _STEPS
        if self._small:
            steps = min(steps, max(1, _NOISE_ELEMENTS // (len(self._ways) * self._vocab_size)))
        self._streams[2] += np.uint64(self._at)
        self._at, self._steps = 0, steps
        self._keys = self._keys_of(self._streams, 0, steps)
        if self._small:
            self._noise = self._noise_of(self._keys)

    def _keys_of(self, streams: Any, start: int, end: int) -> torch.Tensor:
        """Keys [steps, rows, 2] of steps that count from when the present ones were made."""
        seeds, indices, first = streams
        # the first may lie below zero, for a row that joined later: sums wrap back
        steps = np.arange(start, end, dtype=np.uint64)[:, None]
        return keys_to_torch(keys_at(seeds[None], indices[None], first[None] + steps), self._device)

    def _noise_of(self, keys: torch.Tensor) -> torch.Tensor:
        noise = gumbel_torch(keys.reshape(-1, 2), self._vocab_size)
        return noise.view(*keys.shape[:2], self._vocab_size)
