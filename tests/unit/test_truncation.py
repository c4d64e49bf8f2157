"""Top-k and top-p: the same tokens from numpy and torch, and the distribution they promise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from echo_p2p.sampling import (
    keys_at,
    keys_to_torch,
    sample,
    sample_numpy,
    scaled_logits,
    weights,
)

torch.set_num_threads(1)

SEEDS = st.integers(0, 2**63 - 1)
TOP_P = st.one_of(st.just(1.0), st.floats(1e-6, 1.0), st.sampled_from([0.5, 0.9, 1e-300]))


def both(logits: torch.Tensor, seed: int, *how: Any) -> list[int]:
    """What numpy and torch draw, which must be the same."""
    keys = keys_at(seed, 0, np.arange(len(logits)))
    ours: list[int] = sample(logits, keys_to_torch(keys), *how).tolist()
    assert ours == sample_numpy(logits.float().numpy(), keys, *how).tolist()
    return ours


@given(
    seed=SEEDS,
    size=st.sampled_from([1, 2, 7, 60, 5000]),
    temperature=st.sampled_from([0.1, 1.0, 3.0]),
    top_k=st.integers(0, 9),
    top_p=TOP_P,
    levels=st.sampled_from([0, 2, 5]),
)
@settings(max_examples=150, deadline=None)
def test_numpy_and_torch_draw_the_same(
    seed: int, size: int, temperature: float, top_k: int, top_p: float, levels: int
) -> None:
    logits = 3 * torch.randn(4, size, generator=torch.Generator().manual_seed(seed))
    if levels:  # many equal logits: ties at every border
        logits = (logits * levels / 6).round()
    drawn = both(logits, seed, temperature, top_k, top_p)
    inside = scaled_logits(logits, temperature, top_k, top_p).isfinite()
    assert inside[range(4), drawn].all()


def admitted(logits: list[float], top_k: int = 0, top_p: float = 1.0) -> list[int]:
    scaled = scaled_logits(torch.tensor([logits]), 1.0, top_k, top_p)[0]
    return scaled.isfinite().nonzero()[:, 0].tolist()


LOGITS = np.log([0.4, 0.05, 0.2, 0.3, 0.05]).tolist()


@pytest.mark.parametrize(
    ("top_k", "top_p", "expected"),
    [
        (0, 1.0, [0, 1, 2, 3, 4]),
        (1, 1.0, [0]),
        (3, 1.0, [0, 2, 3]),
        (4, 1.0, [0, 1, 2, 3, 4]),  # the fourth has an equal
        (99, 1.0, [0, 1, 2, 3, 4]),
        (0, 0.39, [0]),
        (0, 0.41, [0, 3]),
        (0, 0.69, [0, 3]),
        (0, 0.71, [0, 2, 3]),
        (0, 0.91, [0, 1, 2, 3, 4]),
        (2, 0.58, [0, 3]),  # of .4 and .3, the first is 57 %
        (2, 0.56, [0]),
        (3, 1e-9, [0]),
    ],
)
def test_what_is_admitted(top_k: int, top_p: float, expected: list[int]) -> None:
    assert admitted(LOGITS, top_k, top_p) == expected


def test_equals_are_admitted_together() -> None:
    assert admitted([1.0, 1.0, 1.0, 0.0], top_k=1) == [0, 1, 2]
    assert admitted([1.0, 1.0, 1.0, 0.0], top_p=0.1) == [0, 1, 2]
    assert admitted([0.0] * 6, top_k=2, top_p=0.5) == list(range(6))


def test_weights_are_exponentials() -> None:
    scaled = torch.linspace(0, -25, 10_001)[None]
    exact = torch.exp(scaled.double()) * 2**30
    found = weights(scaled)[0]
    assert ((found - exact[0]).abs() <= 1 + 2e-6 * exact[0]).all() or (
        (found == 0) & (scaled[0] < -20.7) | ((found - exact[0]).abs() <= 1 + 2e-6 * exact[0])
    ).all()
    assert (found[:-1] >= found[1:] - 1).all()


def test_infinite_logits_are_never_admitted() -> None:
    logits = torch.full((2, 50), float("-inf"))
    logits[:, [3, 9]] = 1.0
    assert set(both(logits, 1, 1.0, 40, 0.99)) <= {3, 9}


def chi_square(counts: Any, probabilities: Any) -> float:
    expected = probabilities * counts.sum()
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize(
    ("top_k", "top_p", "temperature"),
    [(3, 1.0, 1.0), (0, 0.8, 1.0), (5, 0.9, 2.0), (4, 0.5, 0.5), (0, 0.95, 1.0)],
)
@pytest.mark.parametrize("size", [8, 6000])
def test_draws_follow_the_truncated_softmax(
    top_k: int, top_p: float, temperature: float, size: int
) -> None:
    """Chi-square over seeds; the bound is above the .01 % critical value at 7 degrees."""
    count = 4_000 if size > 8 else 20_000
    logits = torch.full((size,), -40.0)
    places = torch.arange(8) * (size // 8)
    logits[places] = torch.tensor([0.0, 1.0, -1.0, 2.0, 0.5, -3.0, 0.5, 1.5])
    keys = keys_to_torch(keys_at(np.arange(count), 0, 0))
    drawn = torch.cat(
        [
            sample(logits.expand(len(part), -1), part, temperature, top_k, top_p)
            for part in keys.split(500)
        ]
    )
    counts = np.bincount(drawn.numpy() // (size // 8), minlength=8)
    # the definition in plain words, in float64
    p = torch.softmax(logits[places].double() / temperature, -1).numpy()
    kept = np.array([(p > x).sum() < (top_k or 8) for x in p])
    q = np.where(kept, p, 0) / p[kept].sum()
    kept &= np.array([q[q > x].sum() < top_p for x in q])
    assert counts[~kept].sum() == 0
    q = q[kept] / q[kept].sum()
    assert chi_square(counts[kept], q) < 30.0
