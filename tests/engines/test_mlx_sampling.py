"""Seeded sampling in MLX: the tokens of the definition, at every size of vocabulary."""

from __future__ import annotations

import numpy as np
import pytest

mx = pytest.importorskip("mlx.core", reason="MLX is not installed")

from echo_node.engines.mlx_sampling import (  # noqa: E402
    CANDIDATES,
    Drawer,
    block_size,
    draw_large,
    gumbel_mlx,
    rough_sums,
)
from echo_p2p.noise import gumbel_numpy, row_keys  # noqa: E402
from echo_p2p.sampling import SMALL_VOCABULARY, sample_numpy  # noqa: E402
from echo_p2p.wire import Sampling  # noqa: E402

pytestmark = pytest.mark.mlx


def how(temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> Sampling:
    return Sampling(temperature=temperature, top_k=top_k, top_p=top_p, max_new_tokens=100, stop=())


def logits_of(rows: int, vocab: int, scale: float, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, scale, (rows, vocab)).astype(np.float32)


@pytest.mark.parametrize("vocab", [4097, 5000, 9973, 128_256, 150_000, 151_936])
def test_blocks_are_of_a_useful_size(vocab: int) -> None:
    size = block_size(vocab)
    assert 32 <= size <= 512
    assert vocab % size == 0 or vocab == 9973  # a prime
    assert vocab // size >= CANDIDATES


def test_the_noise_has_the_same_bits() -> None:
    keys = row_keys([(seed, seed % 7, 3 * seed) for seed in range(50)])
    tokens = mx.arange(20_000, dtype=mx.uint32)[None]
    ours = np.array(gumbel_mlx(tokens, mx.array(keys)))
    assert np.array_equal(ours.view(np.int32), gumbel_numpy(keys, 20_000).view(np.int32))


@pytest.mark.parametrize("vocab", [61, SMALL_VOCABULARY, SMALL_VOCABULARY + 1, 9_973, 50_000])
@pytest.mark.parametrize("scale", [0.0, 1.0, 6.0])
def test_tokens_are_those_of_the_definition(vocab: int, scale: float) -> None:
    rows = 16
    ways = [
        how(), how(0.5), how(1.7), how(top_k=1), how(top_k=5), how(0.7, top_k=vocab),
        how(top_p=0.9), how(1.3, top_p=0.5), how(top_k=20, top_p=0.8), how(top_p=1e-4),
        how(0.9, 7, 0.99), *[how()] * 5,
    ]  # fmt: skip
    streams = [(2**63 + 17 * i, i % 3) for i in range(rows)]
    drawer = Drawer(vocab)
    starts = [5 * i for i in range(rows)]
    drawer.begin(streams, starts, ways)
    for step in range(3):
        logits = np.round(logits_of(rows, vocab, scale, step) * 8) / 8  # with many equals
        drawn = np.array(drawer.draw(mx.array(logits)))
        keys = row_keys([(s, i, starts[r] + step) for r, (s, i) in enumerate(streams)])
        for row, way in enumerate(ways):
            one = slice(row, row + 1)
            expected = sample_numpy(logits[one], keys[one], way.temperature, way.top_k, way.top_p)
            assert drawn[row] == expected[0], (row, step)


def test_a_plain_batch_goes_on_over_many_positions_and_changes_of_rows() -> None:
    drawer, vocab = Drawer(300), 300
    streams, at = [(11, 0), (11, 1), (12, 0)], [0, 7, 1000]
    for rows in ([0, 1, 2], [0, 2], [2]):
        drawer.begin([streams[r] for r in rows], [at[r] for r in rows], [how()] * len(rows))
        for _ in range(70):  # more than are prepared at once
            logits = logits_of(len(rows), vocab, 1.0, at[2])
            keys = row_keys([(*streams[r], at[r]) for r in rows])
            drawn = np.array(drawer.draw(mx.array(logits)))
            assert drawn.tolist() == sample_numpy(logits, keys, 1.0).tolist()
            for row in rows:
                at[row] += 1


def test_the_inexact_pass_errs_by_less_than_it_says() -> None:
    vocab = 1 << 20
    tokens = mx.arange(vocab, dtype=mx.uint32)[None]
    keys = mx.array(row_keys([(seed, 0, 0) for seed in range(8)]))
    zeros = mx.zeros((8, vocab))
    error = mx.abs(mx.compile(rough_sums)(zeros, keys, tokens) - gumbel_mlx(tokens, keys))
    assert error.max().item() < 5e-5


def test_the_exact_noise_decides_among_the_candidates() -> None:
    """Logits made so that the sums are nearly equal for several tokens."""
    vocab, near = 10_000, CANDIDATES - 1
    keys = row_keys([(seed, 0, 0) for seed in range(200)])
    noise = gumbel_numpy(keys, vocab)
    logits = np.full((200, vocab), -50, np.float32)
    places = np.random.default_rng(1).integers(0, vocab, (200, near))
    for row, tokens in enumerate(places):
        logits[row, tokens] = np.float32(3.0) - noise[row, tokens]
    tokens = mx.arange(vocab, dtype=mx.uint32)[None]
    drawn = draw_large(mx.array(logits), mx.array(keys), tokens)
    assert np.array(drawn).tolist() == sample_numpy(logits, keys, 1.0).tolist()
