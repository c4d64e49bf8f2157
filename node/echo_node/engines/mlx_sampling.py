"""Seeded sampling in MLX operations: the tokens of `echo_p2p.sampling`, on any device of MLX.

Promise: `Drawer.draw` gives the token that `sampling.sample_numpy` gives for the same logits. Every
float of the noise is made by single operations, one array operation each, because a fused kernel
may contract a multiplication and an addition into one rounding. At a large vocabulary that would
cost more than the model's step. There a fused, slightly inexact pass only finds the few tokens that
can win, and the exact noise of those decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from echo_p2p.noise import gumbel_of_bits, keys_at
from echo_p2p.sampling import SMALL_VOCABULARY, share_of, weights_of
from echo_p2p.wire import Sampling

CANDIDATES = 4
"""Blocks of tokens whose exact noise is taken at a large vocabulary: those with the highest inexact
sums. These err by less than 1e-4, so the winner is missed only if as many others lie within 2e-4 of
it: less than once in 1e14 tokens."""

_BLOCK = 512
_POSITIONS = 64
_NOISE_ELEMENTS = 1 << 15
_LN2_32 = 22.180709777918249


class Mlx:
    """See `echo_p2p.noise.Numpy`."""

    where = staticmethod(mx.where)

    @staticmethod
    def to_float(x: Any) -> Any:
        return x.astype(mx.float32)

    @staticmethod
    def to_int(x: Any) -> Any:
        return x.astype(mx.int32)

    @staticmethod
    def bits(x: Any) -> Any:
        return x.view(mx.int32)

    @staticmethod
    def from_bits(x: Any) -> Any:
        return x.view(mx.float32)

    @staticmethod
    def f32(value: float) -> Any:
        return float(np.float32(value))


def hash_mlx(tokens: mx.array, keys: mx.array) -> mx.array:
    """The integers (uint32) that the noise is made of; tokens [rows or 1, n], keys [rows, 2]."""
    x = tokens ^ keys[..., :1]
    for key in (None, keys[..., 1:]):
        if key is not None:
            x = x ^ key
        x = x ^ (x >> 16)
        x = x * 0x21F0AAAD
        x = x ^ (x >> 15)
        x = x * 0x735A2D97
        x = x ^ (x >> 15)
    return x


def gumbel_mlx(tokens: mx.array, keys: mx.array) -> mx.array:
    """The exact noise, float32, of these tokens (uint32) under these keys [rows, 2]."""
    noise: mx.array = gumbel_of_bits(hash_mlx(tokens, keys).view(mx.int32), Mlx)
    return noise


class Drawer:
    """The noise streams of the rows of one batch; row i is `ahead` tokens past its `starts[i]`."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._tokens = mx.arange(vocab_size, dtype=mx.uint32)[None]
        self._exact = vocab_size <= SMALL_VOCABULARY
        self._ready = 0  # positions whose keys, and noise if small, are at hand
        self._next = 0
        self._keys = self._noise = self._tokens
        self._positions = np.zeros(0, np.uint64)

    def begin(
        self, streams: Sequence[tuple[int, int]], positions: Sequence[int], how: Sequence[Sampling]
    ) -> None:
        """Set the rows: (seed, index) of each, the position to draw next, the way of sampling."""
        self._seeds, self._indices = (
            np.array([stream[i] for stream in streams], dtype=np.uint64) for i in (0, 1)
        )
        self._positions = np.array(positions, dtype=np.uint64)
        self._how = How(how, self._vocab_size)
        self._ready = self._next = 0

    def keep(self, rows: Sequence[int]) -> None:
        """Go on with these rows only, in this order."""
        self._seeds, self._indices = self._seeds[rows], self._indices[rows]
        self._positions = self._positions[rows]
        self._how.keep(rows)
        if self._next < self._ready:
            chosen = mx.array(rows)
            self._keys = self._keys[:, chosen]
            if self._exact:
                self._noise = self._noise[:, chosen]

    def draw(self, logits: mx.array) -> mx.array:
        """The next token of each row from its raw logits [rows, vocab]: uint32 [rows]."""
        if self._next == self._ready:
            self._prepare()
        at = self._next
        self._next += 1
        scaled = self._how.scaled(logits)
        if self._exact:
            return mx.argmax(scaled + self._noise[at], axis=-1)
        return draw_large(scaled, self._keys[at], self._tokens)

    def _prepare(self) -> None:
        rows = len(self._positions)
        self._positions = self._positions + np.uint64(self._next)
        count = _POSITIONS
        if self._exact:
            count = min(count, max(1, _NOISE_ELEMENTS // (rows * self._vocab_size)))
        ahead = np.arange(count, dtype=np.uint64)[:, None]
        keys = keys_at(self._seeds[None], self._indices[None], self._positions[None] + ahead)
        self._keys = mx.array(keys)
        if self._exact:
            self._noise = gumbel_mlx(self._tokens, self._keys)
        self._ready, self._next = count, 0


def draw_large(scaled: mx.array, keys: mx.array, tokens: mx.array) -> mx.array:
    """argmax of s + g, the lowest of equals, by the exact noise of the few that can win."""
    rows, vocab_size = scaled.shape
    size = block_size(vocab_size)
    rough = _rough_sums(scaled, keys, tokens)
    if vocab_size % size:
        rough = mx.pad(rough, [(0, 0), (0, size - vocab_size % size)], constant_values=-mx.inf)
    highest = rough.reshape(rows, -1, size).max(axis=-1)
    blocks = mx.argpartition(-highest, CANDIDATES - 1, axis=-1)[:, :CANDIDATES]
    within = mx.sort(blocks, axis=-1)[:, :, None] * size + mx.arange(size)
    # what is beyond the vocabulary is its last token once more, which does no harm
    candidates = mx.minimum(within.reshape(rows, -1), vocab_size - 1).astype(mx.uint32)
    exact = mx.take_along_axis(scaled, candidates, axis=-1) + gumbel_mlx(candidates, keys)
    winner = mx.argmax(exact, axis=-1, keepdims=True)
    return mx.take_along_axis(candidates, winner, axis=-1)[:, 0]


def block_size(vocab_size: int) -> int:
    """Into blocks of how many tokens a vocabulary is cut; without a rest if that can be."""
    whole = max(size for size in range(1, _BLOCK + 1) if vocab_size % size == 0)
    return whole if whole >= _BLOCK // 16 else _BLOCK


def rough_sums(scaled: mx.array, keys: mx.array, tokens: mx.array) -> mx.array:
    """s + g with any library's logarithm: an error below 5e-5, and one fused kernel."""
    n = hash_mlx(tokens, keys)
    upper = n >= 0x80000000
    y = mx.where(upper, ~n, n).astype(mx.float32) + 0.5
    e = mx.where(upper, -mx.log1p(y * -(2.0**-32)), _LN2_32 - mx.log(y))
    return scaled - mx.log(e)


_rough_sums: Any = mx.compile(rough_sums)


class How:
    """How each row of a batch is sampled: temperatures, and what top-k and top-p admit."""

    def __init__(self, rows: Sequence[Sampling], vocab_size: int) -> None:
        self._rows, self._vocab_size = list(rows), vocab_size
        self._set()

    def keep(self, rows: Sequence[int]) -> None:
        """Go on with these rows only, in this order."""
        self._rows = [self._rows[i] for i in rows]
        self._set()

    def _set(self) -> None:
        size = self._vocab_size
        self._temperatures: mx.array | None = None
        if any(row.temperature != 1.0 for row in self._rows):
            self._temperatures = mx.array([[row.temperature] for row in self._rows])
        ranks = [row.top_k if 0 < row.top_k < size else size for row in self._rows]
        self._top_p = [row.top_p for row in self._rows]
        self._plain = set(ranks) == {size} and min(self._top_p) >= 1.0
        self._ranks = mx.array([[rank] for rank in ranks], dtype=mx.int32)

    def scaled(self, logits: mx.array) -> mx.array:
        """s of admitted tokens, -inf of others, float32."""
        scaled = logits.astype(mx.float32)
        if self._temperatures is not None:
            scaled = scaled / self._temperatures
        if self._plain:
            return scaled
        return mx.where(scaled < self._lowest_admitted(scaled), -float("inf"), scaled)

    def _lowest_admitted(self, scaled: mx.array) -> mx.array:
        ordered = -mx.sort(-scaled, axis=-1)
        ranked = mx.take_along_axis(ordered, self._ranks - 1, axis=-1)
        last = (ordered >= ranked).astype(mx.int32).sum(axis=-1, keepdims=True) - 1
        if min(self._top_p) < 1.0:
            mass = weights_of(ordered, ordered[:, :1], Mlx).astype(mx.int64)
            before = mx.cumsum(mass, axis=-1)
            total = mx.take_along_axis(before, last, axis=-1)
            most = mx.concatenate(
                [share_of(total[i : i + 1], top_p) for i, top_p in enumerate(self._top_p)]
            )
            # of equals the first has the least before it: it stands for them all
            inside = (before - mass < most).astype(mx.int32).sum(axis=-1, keepdims=True) - 1
            truncated = mx.array([[top_p < 1.0] for top_p in self._top_p])
            last = mx.where(truncated, mx.minimum(last, inside), last)
        return mx.take_along_axis(ordered, last, axis=-1)
