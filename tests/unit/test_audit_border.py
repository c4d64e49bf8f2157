"""Margins under top-k and top-p: noise is excused by as much as it is, and nothing else is."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from echo_hub.audit.margins import token_evidence
from echo_p2p.sampling import keys_at, keys_to_torch, sample

torch.set_num_threads(1)

ROWS = 64


def margins(logits: torch.Tensor, tokens: torch.Tensor, keys: torch.Tensor, k: int, p: float):
    found = token_evidence(
        logits, tokens, torch.zeros(len(tokens)), keys=keys, temperature=1.0, top_k=k, top_p=p
    )
    return found.margins


@given(
    seed=st.integers(0, 2**31),
    size=st.sampled_from([3, 20, 300]),
    top_k=st.sampled_from([0, 1, 2, 10]),
    top_p=st.sampled_from([1.0, 0.999, 0.9, 0.5, 0.1]),
    noise=st.sampled_from([1e-4, 1e-2, 0.3]),
    levels=st.sampled_from([0, 3]),
)
@settings(max_examples=150, deadline=None)
def test_noise_is_excused(
    seed: int, size: int, top_k: int, top_p: float, noise: float, levels: int
) -> None:
    """A token drawn from logits that are off by up to d / 2 has a margin of d at most."""
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(ROWS, size, generator=generator)
    if levels:
        logits = (logits * levels / 6).round()
    keys = keys_to_torch(keys_at(seed, 0, np.arange(ROWS)))
    off = (torch.rand(logits.shape, generator=generator) - 0.5) * noise
    tokens = sample(logits + off, keys, 1.0, top_k, top_p)
    found = margins(logits, tokens, keys, top_k, top_p)
    assert found.max() <= noise * 1.01 + 1e-5
    honest = sample(logits, keys, 1.0, top_k, top_p) == tokens
    assert (found[honest] == 0).all()
    assert (found[~honest] > 0).all()


@pytest.mark.parametrize(("top_k", "top_p"), [(3, 1.0), (0, 0.8), (3, 0.9)])
def test_a_token_that_is_left_out_shows(top_k: int, top_p: float) -> None:
    logits = torch.tensor([[5.0, 4.5, 4.0, 2.0, 1.0]]).repeat(ROWS, 1)
    keys = keys_to_torch(keys_at(5, 0, np.arange(ROWS)))
    for token, least in ((3, 0.5), (4, 1.0)):
        claimed = torch.full((ROWS,), token)
        assert margins(logits, claimed, keys, top_k, top_p).min() > least


def test_sampling_without_the_limits_shows() -> None:
    logits = torch.randn(2000, 50, generator=torch.Generator().manual_seed(1))
    keys = keys_to_torch(keys_at(5, 0, np.arange(2000)))
    tokens = sample(logits, keys, 1.0)
    found = margins(logits, tokens, keys, 0, 0.9)
    assert (found > 0.1).float().mean() > 0.03


def test_without_a_border_it_is_the_plain_margin() -> None:
    """A border that leaves nothing out: the two ways of computing agree."""
    logits = torch.randn(500, 50, generator=torch.Generator().manual_seed(2))
    keys = keys_to_torch(keys_at(5, 0, np.arange(500)))
    tokens = sample(logits, keys + 1, 1.0)
    plain = margins(logits, tokens, keys, 0, 1.0)
    bordered = margins(logits, tokens, keys, 50, 1.0)
    torch.testing.assert_close(plain, bordered, rtol=1e-3, atol=1e-5)
