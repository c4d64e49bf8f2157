"""The seeded sampler: the same noise everywhere, truly Gumbel, and drawn from softmax(z / T)."""

from __future__ import annotations

import math
import subprocess
import sys
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from echo_p2p.noise import Numpy, Torch, _splitmix64, gumbel_of_bits
from echo_p2p.sampling import (
    gumbel_numpy,
    gumbel_torch,
    keys_at,
    keys_to_torch,
    perturbed,
    row_key,
    row_keys,
    sample,
)

torch.set_num_threads(1)

SEEDS = st.integers(0, 2**63 - 1)
ROWS = st.lists(
    st.tuples(SEEDS, st.integers(0, 63), st.integers(0, 32_767)), min_size=1, max_size=4
)
MAX_ERROR = 4e-6
# the noise of tokens 0, 1, 2, 1000 and 49151 in five rows (seed, index, position), as little-endian
# float32: what every engine must reproduce, in this version and in all later ones
VECTORS: dict[tuple[int, int, int], str] = {
    (0, 0, 0): "cccdfd3fbccc933ff872903df25926403ca9393e",
    (1, 0, 0): "74e8bd3fba507240b278ee3e5a028d3fb2f25ebe",
    (7, 3, 41): "4d3257bf9289b0be71301e3e15525ebfff1a4cbf",
    (9223372036854775807, 63, 32767): "e360193f1e41f7be9c3785bee625193db406103d",
    (1234567890123456789, 5, 512): "4172913e133d91be85a80abf2a3e983f583a96bd",
}


def hash_of(token: int, keys: tuple[int, int]) -> int:
    """The hash in plain integers, written from the module's description and not from its code."""
    x = token
    for key in keys:
        x ^= key
        x ^= x >> 16
        x = x * 0x21F0AAAD % 2**32
        x ^= x >> 15
        x = x * 0x735A2D97 % 2**32
        x ^= x >> 15
    return x


def exact_gumbel(n: Any) -> Any:
    """-ln(-ln((n + 1/2) / 2^32)) in float64, by way of 1 - u where u is near 1."""
    u = (np.asarray(n, dtype=np.float64) + 0.5) / 2**32
    w = (2**32 - 0.5 - np.asarray(n, dtype=np.float64)) / 2**32
    return -np.log(np.where(u > 0.5, -np.log1p(-np.minimum(w, 0.75)), -np.log(u)))


def noise_of(numbers: Any) -> np.ndarray[Any, np.dtype[np.float32]]:
    bits = np.asarray(numbers, dtype=np.uint32).view(np.int32)
    noise: np.ndarray[Any, np.dtype[np.float32]] = gumbel_of_bits(bits, Numpy)
    return noise


@cache
def interesting_numbers() -> np.ndarray[Any, np.dtype[np.int64]]:
    """All near the ends, the middle and every power of two, and many spread between."""
    powers = 2 ** np.arange(33, dtype=np.int64)
    near = np.concatenate([powers, 2**32 - powers])[:, None] + np.arange(-600, 601)
    spread = np.arange(0, 2**32, 16_381, dtype=np.int64)
    numbers = np.unique(np.concatenate([near.ravel(), spread]))
    return numbers[(numbers >= 0) & (numbers < 2**32)]


# --- keys ----------------------------------------------------------------------------------------


def test_splitmix64_gives_its_published_numbers() -> None:
    """The first outputs of the generator of Steele et al. with the seed 1234567."""
    golden, state = 0x9E3779B97F4A7C15, 1234567
    assert [_splitmix64((state + i * golden) % 2**64) for i in range(5)] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


@given(ROWS)
def test_keys_of_many_rows_are_those_of_each(rows: list[tuple[int, int, int]]) -> None:
    keys = row_keys(rows)
    assert keys.dtype == np.uint32
    assert keys.tolist() == [list(row_key(*row)) for row in rows]
    columns = [np.asarray(column, dtype=np.uint64) for column in zip(*rows, strict=True)]
    assert (keys_at(*columns) == keys).all()


def test_keys_of_a_grid_broadcast() -> None:
    keys = keys_at(5, np.arange(3)[:, None], np.arange(4)[None, :])
    assert keys.shape == (3, 4, 2)
    assert keys[2, 3].tolist() == list(row_key(5, 2, 3))
    assert row_keys([]).shape == (0, 2)


def test_rows_have_keys_of_their_own() -> None:
    rows = [(s, i, p) for s in range(20) for i in range(20) for p in range(20)]
    rows += [(s << 32, i, p) for s in range(1, 20) for i in range(20) for p in range(20)]
    assert len({row_key(*row) for row in rows}) == len(rows)


# --- noise ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", VECTORS)
def test_fixed_vectors(row: tuple[int, int, int]) -> None:
    tokens = [0, 1, 2, 1000, 49_151]
    ours = gumbel_numpy(row_keys([row]), 49_152)[0, tokens]
    theirs = gumbel_torch(keys_to_torch(row_keys([row])), 49_152)[0, tokens].numpy()
    assert ours.tobytes().hex() == theirs.tobytes().hex() == VECTORS[row]
    exact = exact_gumbel([hash_of(token, row_key(*row)) for token in tokens])
    assert np.abs(ours - exact).max() < MAX_ERROR


@given(ROWS, st.integers(1, 3000))
def test_numpy_and_torch_agree_to_the_bit(rows: list[tuple[int, int, int]], size: int) -> None:
    keys = row_keys(rows)
    ours = gumbel_numpy(keys, size)
    theirs = gumbel_torch(keys_to_torch(keys), size)
    assert ours.dtype == np.float32
    assert theirs.dtype == torch.float32
    assert ours.shape == tuple(theirs.shape) == (len(rows), size)
    assert ours.tobytes() == theirs.numpy().tobytes()


def test_numpy_and_torch_agree_at_every_edge_whatever_the_layout() -> None:
    """Vector units treat the ends of arrays otherwise than their middles; the noise does not."""
    numbers = interesting_numbers().astype(np.uint32)
    ours = noise_of(numbers)
    bits = torch.from_numpy(numbers.view(np.int32).copy())
    assert gumbel_of_bits(bits, Torch).numpy().tobytes() == ours.tobytes()
    for start, stop, step in ((1, None, 1), (3, 1000, 7), (5, 12, 1)):
        part = gumbel_of_bits(bits[start:stop:step], Torch).numpy()
        assert part.tobytes() == ours[start:stop:step].tobytes()
    one_by_one = np.concatenate([noise_of(numbers[i : i + 1]) for i in range(500)])
    assert one_by_one.tobytes() == ours[:500].tobytes()


@given(SEEDS, st.integers(0, 63), st.integers(0, 32_767), st.integers(0, 200_000))
def test_the_noise_of_a_token_is_that_of_its_hash(
    seed: int, index: int, position: int, token: int
) -> None:
    row = (seed, index, position)
    full = gumbel_numpy(row_keys([row]), token + 1)
    assert full[0, token] == noise_of([hash_of(token, row_key(*row))])[0]


def test_the_error_against_the_exact_logarithm_is_below_the_promise() -> None:
    numbers = interesting_numbers()
    noise = noise_of(numbers)
    assert np.isfinite(noise).all()
    assert np.abs(noise - exact_gumbel(numbers)).max() < MAX_ERROR


def test_noise_rises_with_the_hashed_integer() -> None:
    """What the pruning in `sample` rests on, within the slack it allows."""
    noise = noise_of(interesting_numbers())
    assert (np.diff(noise) > -1e-6).all()
    assert noise[0] == pytest.approx(-math.log(33 * math.log(2)), abs=MAX_ERROR)
    assert noise[-1] == pytest.approx(33 * math.log(2), abs=MAX_ERROR)


def test_noise_is_gumbel() -> None:
    """Kolmogorov-Smirnov against exp(-exp(-g)); .1 % critical value."""
    noise = np.sort(gumbel_numpy(row_keys([(s, 0, 0) for s in range(100)]), 2_000).ravel())
    count = len(noise)
    cdf = np.exp(-np.exp(-noise.astype(np.float64)))
    steps = np.arange(count + 1) / count
    distance = max(np.abs(cdf - steps[1:]).max(), np.abs(cdf - steps[:-1]).max())
    assert distance < 1.95 / math.sqrt(count)


def test_numpy_needs_no_torch() -> None:
    """The hub's network process makes noise without it."""
    code = (
        "import sys; from echo_p2p.sampling import gumbel_numpy, row_keys; "
        "gumbel_numpy(row_keys([(1, 2, 3)]), 10); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# --- sampling ------------------------------------------------------------------------------------


def rows_of(seed: int, count: int) -> torch.Tensor:
    return keys_to_torch(keys_at(seed, 0, np.arange(count)))


def full_argmax(logits: torch.Tensor, keys: torch.Tensor, temperature: float) -> torch.Tensor:
    return perturbed(logits, gumbel_torch(keys, logits.shape[-1]), temperature).argmax(-1)


SHAPES = {
    "flat": lambda z: torch.zeros_like(z),
    "gaussian": lambda z: z,
    "wide": lambda z: 10 * z,
    "peaked": lambda z: torch.where(torch.arange(z.shape[-1]) == 17, z + 30, z),
    "two equals": lambda z: torch.where(torch.arange(z.shape[-1]) % 4000 == 1, 9.0, z),
    "mostly forbidden": lambda z: torch.where(torch.arange(z.shape[-1]) % 1000 == 0, z, -math.inf),
    "one allowed": lambda z: torch.where(torch.arange(z.shape[-1]) == 4999, z, -math.inf),
    "huge": lambda z: 1e30 * z,
    "bfloat16": lambda z: (3 * z).to(torch.bfloat16),
}


@pytest.mark.parametrize("shape", SHAPES)
@given(
    seed=SEEDS,
    size=st.sampled_from([4097, 5000, 12_345]),
    temperature=st.sampled_from([0.01, 0.3, 1.0, 1.7, 100.0]),
)
@settings(max_examples=25)
def test_pruning_changes_nothing(shape: str, seed: int, size: int, temperature: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    size = max(size, 5000) if shape == "one allowed" else size
    logits = SHAPES[shape](torch.randn(4, size, generator=generator))
    keys = rows_of(seed, 4)
    drawn = sample(logits, keys, temperature)
    assert drawn.dtype == torch.int64
    assert drawn.tolist() == full_argmax(logits, keys, temperature).tolist()
    if "one" in shape:
        assert drawn.tolist() == [4999] * 4


@given(seed=SEEDS, size=st.integers(1, 4096))
@settings(max_examples=25)
def test_small_vocabularies_are_drawn_from_whole(seed: int, size: int) -> None:
    logits = torch.randn(3, size, generator=torch.Generator().manual_seed(seed))
    keys = rows_of(seed, 3)
    assert sample(logits, keys, 1.0).tolist() == full_argmax(logits, keys, 1.0).tolist()


def test_a_row_does_not_depend_on_its_batch() -> None:
    logits = torch.randn(16, 6000, generator=torch.Generator().manual_seed(0))
    keys = rows_of(1, 16)
    together = sample(logits, keys, 1.0).tolist()
    assert together == [int(sample(logits[i : i + 1], keys[i : i + 1], 1.0)) for i in range(16)]


LOGITS = torch.tensor([0.0, 1.0, -1.0, 2.0, 0.5, -3.0, 0.5, 1.5])


def chi_square(counts: np.ndarray[Any, Any], probabilities: np.ndarray[Any, Any]) -> float:
    expected = probabilities * counts.sum()
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("vary", ["seed", "index", "position"])
def test_draws_follow_the_softmax(vary: str, temperature: float) -> None:
    """Chi-square over what varies between draws; 24.3 is the .1 % critical value at 7 degrees."""
    count = 20_000
    row = {"seed": np.asarray(3), "index": np.asarray(1), "position": np.asarray(2)}
    row[vary] = np.arange(count)
    keys = keys_at(row["seed"], row["index"], row["position"])
    drawn = sample(LOGITS.expand(count, -1), keys_to_torch(keys.reshape(count, 2)), temperature)
    counts = np.bincount(drawn.numpy(), minlength=8)
    probabilities = torch.softmax(LOGITS.double() / temperature, -1).numpy()
    assert chi_square(counts, probabilities) < 24.3


def test_draws_of_a_pruned_vocabulary_follow_the_softmax() -> None:
    """The same, where the eight likely tokens lie among six thousand that are not."""
    count, size = 4_000, 6_000
    logits = torch.full((size,), -30.0)
    places = torch.arange(8) * 700
    logits[places] = LOGITS
    drawn = torch.cat(
        [sample(logits.expand(500, -1), rows_of(seed, 500), 1.0) for seed in range(count // 500)]
    )
    assert set(drawn.tolist()) <= set(places.tolist())
    counts = np.bincount(drawn.numpy() // 700, minlength=8)
    assert chi_square(counts, torch.softmax(LOGITS.double(), -1).numpy()) < 24.3


@pytest.mark.parametrize("step", ["next position", "next index", "next seed"])
def test_neighbouring_draws_are_independent(step: str) -> None:
    """Chi-square of pairs; 103.4 is the .1 % critical value at 63 degrees."""
    count = 20_000
    base = {"next position": (5, 0, 2), "next index": (5, 2, 0), "next seed": (2, 0, 0)}[step]
    factors = {"next position": (0, 0, 1), "next index": (0, 1, 0), "next seed": (1, 0, 0)}[step]
    at = np.arange(2 * count)
    keys = keys_at(*(b + f * at for b, f in zip(base, factors, strict=True)))
    drawn = sample(LOGITS.expand(2 * count, -1), keys_to_torch(keys), 1.0).numpy()
    pairs = np.bincount(8 * drawn[::2] + drawn[1::2], minlength=64)
    one = torch.softmax(LOGITS.double(), -1).numpy()
    assert chi_square(pairs, np.outer(one, one).ravel()) < 103.4
