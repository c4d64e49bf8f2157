"""Seeded sampling: the one definition of how a token is drawn, shared by engines and auditor.

Given raw logits z, temperature T, `top_k` (0 = off), `top_p` (1 = off) and a row's key:

1. s = z / T, in float32.
2. Top-k admits token i if fewer than `top_k` tokens have a greater s. Equals are all admitted.
3. Top-p admits token i, of those, if the tokens with a greater s have less than the share `top_p`
   of the probability of all that top-k admitted. Equals are all admitted, or none.
4. The token is the admitted one with the greatest s + g; of equals, the one with the lowest id.

g is standard Gumbel noise, so this samples from softmax(s) among the admitted tokens (the
Gumbel-max trick). Here g is a *function* of (lease seed, rollout index, position, token id), see
`echo_p2p.noise`: a rollout is a function of the policy, the prompt and the hub's seed, and can be
derived again.

Promise: numpy and torch draw the same tokens from the same logits, on any device. No sum depends
on its order: probabilities are counted in integers, 2^30 for the likeliest token, which are made by
single IEEE-754 float32 operations; `top_p` is taken to the nearest 2^-20.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from echo_p2p.noise import (
    Numpy,
    Torch,
    gumbel_numpy,
    gumbel_of_bits,
    gumbel_torch,
    hash_torch,
    keys_at,
    keys_to_torch,
    row_key,
    row_keys,
)

if TYPE_CHECKING:
    import torch

__all__ = [
    "SMALL_VOCABULARY", "gumbel_numpy", "gumbel_torch", "keys_at", "keys_to_torch",
    "lowest_admitted", "perturbed", "row_key", "row_keys", "sample", "sample_numpy",
    "scaled_logits", "weights",
]  # fmt: skip

SMALL_VOCABULARY = 4096
"""Up to here a whole row of noise costs less than finding out which tokens can win."""

_TOP_P_BITS = 20
_WEIGHT_BITS = 30
_LOWEST = -21.0  # exp of it, times 2^30, is below 1
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4
_EXP_TERMS = (1 / 720, 1 / 120, 1 / 24, 1 / 6, 1 / 2, 1.0, 1.0)


# --- what torch draws -----------------------------------------------------------------------------


def perturbed(
    logits: torch.Tensor,
    noise: torch.Tensor,
    temperature: float,
    top_k: int = 0,
    top_p: float = 1.0,
) -> torch.Tensor:
    """s + g of admitted tokens, -inf of others, float32: what the sampler takes the argmax of."""
    return scaled_logits(logits, temperature, top_k, top_p) + noise


def scaled_logits(
    logits: torch.Tensor, temperature: float, top_k: int = 0, top_p: float = 1.0
) -> torch.Tensor:
    """s of admitted tokens, -inf of others: softmax of it is what the sampler samples from."""
    scaled = logits.float() / temperature
    if not _truncates(top_k, top_p, scaled.shape[-1]):
        return scaled
    return scaled.masked_fill(scaled < lowest_admitted(scaled, top_k, top_p), float("-inf"))


def sample(
    logits: torch.Tensor,
    keys: torch.Tensor,
    temperature: float,
    top_k: int = 0,
    top_p: float = 1.0,
) -> torch.Tensor:
    """argmax of `perturbed`: int64 [rows], from raw logits [rows, vocab], keys int32 [rows, 2].

    Rows are first drawn from all tokens. If the winner is an admitted one, it is the winner of the
    admitted ones too; only the other rows need to be sorted.
    """
    scaled = logits.float() / temperature
    drawn = _draw(scaled, keys)
    if _truncates(top_k, top_p, scaled.shape[-1]):
        odd = (~_admits(scaled, drawn, top_k, top_p)).nonzero()[:, 0]
        if len(odd):
            drawn[odd] = _draw(scaled_logits(logits[odd], temperature, top_k, top_p), keys[odd])
    return drawn


def weights(scaled: torch.Tensor) -> torch.Tensor:
    """Probabilities, up to a factor a row, as integers (int64): 2^30 for the likeliest token."""
    import torch

    whole: torch.Tensor = weights_of(scaled, scaled.amax(-1, keepdim=True), Torch).to(torch.int64)
    return whole


def lowest_admitted(scaled: torch.Tensor, top_k: int, top_p: float) -> torch.Tensor:
    """The least s that is admitted, a row: [rows, 1]."""
    import torch

    ordered = scaled.sort(-1, descending=True).values
    size = scaled.shape[-1]
    last = torch.full_like(ordered[:, :1], size - 1, dtype=torch.int64)
    if 0 < top_k < size:
        last = (ordered >= ordered[:, top_k - 1 : top_k]).sum(-1, keepdim=True) - 1
    if top_p < 1.0:
        mass = weights(ordered)
        before = mass.cumsum(-1)
        most = share_of(before.gather(-1, last), top_p)
        # of equals the first has the least before it: it stands for them all
        inside = (before - mass < most).sum(-1, keepdim=True) - 1
        last = torch.minimum(last, inside)
    return ordered.gather(-1, last)


def _admits(scaled: torch.Tensor, tokens: torch.Tensor, top_k: int, top_p: float) -> torch.Tensor:
    """Whether each row's token is one of its admitted ones: bool [rows]."""
    greater = scaled > scaled.gather(-1, tokens[:, None])
    admitted = greater[:, 0] | True
    inside = None
    if 0 < top_k < scaled.shape[-1]:
        admitted = greater.sum(-1) < top_k
        inside = scaled >= scaled.topk(top_k, -1).values[:, -1:]
    if top_p < 1.0:
        mass = weights(scaled)
        total = mass.sum(-1) if inside is None else (mass * inside).sum(-1)
        admitted &= (mass * greater).sum(-1) < share_of(total, top_p)
    return admitted


def _draw(scaled: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """argmax of s + g.

    Exact, and fast at a large vocabulary: g rises with the hashed integer, so a row's largest
    integer bounds its noise. A token whose logit lies more than that bound below the value that
    the likeliest token already reaches cannot win, and its logarithms are never taken.
    """
    import torch

    if scaled.shape[-1] <= SMALL_VOCABULARY:
        return (scaled + gumbel_torch(keys, scaled.shape[-1])).argmax(-1)
    bits = hash_torch(keys, scaled.shape[-1])
    flipped = torch.iinfo(torch.int32).min
    largest = (bits ^ flipped).amax(-1, keepdim=True) ^ flipped  # unsigned order
    top, likeliest = scaled.max(-1, keepdim=True)
    reached = top + gumbel_of_bits(bits.gather(-1, likeliest), Torch)
    bound = gumbel_of_bits(largest, Torch)
    # the slack covers float32 rounding of the two sums compared
    slack = 1e-5 * (1.0 + reached.abs() + bound.abs())
    rows, tokens = torch.nonzero(scaled >= reached - bound - slack, as_tuple=True)
    values = scaled[rows, tokens] + gumbel_of_bits(bits[rows, tokens], Torch)
    dense = torch.full_like(scaled, float("-inf"))
    dense[rows, tokens] = values
    return dense.argmax(-1)


# --- the same, plainly ----------------------------------------------------------------------------


def sample_numpy(
    logits: np.ndarray[Any, Any],
    keys: np.ndarray[Any, np.dtype[np.uint32]],
    temperature: float,
    top_k: int = 0,
    top_p: float = 1.0,
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The reference: draws token by token as the module's docstring says it, and knows no torch."""
    noise = gumbel_numpy(keys, logits.shape[-1])
    scaled = logits.astype(np.float32) / np.float32(temperature)
    drawn = [
        int(np.where(_admitted(row, top_k, top_p), row + gumbel, np.float32("-inf")).argmax())
        for row, gumbel in zip(scaled, noise, strict=True)
    ]
    return np.array(drawn, dtype=np.int64)


def _admitted(row: Any, top_k: int, top_p: float) -> Any:
    order = np.argsort(-row, kind="stable")
    greater = np.searchsorted(-row[order], -row, side="left")
    admitted = greater < top_k if top_k else np.ones(len(row), dtype=bool)
    if top_p < 1.0:
        mass = np.where(admitted, weights_of(row, row.max(), Numpy).astype(np.int64), 0)
        heavier = np.concatenate([[0], mass[order].cumsum()])[greater]
        admitted &= heavier < share_of(mass.sum(), top_p)
    return admitted


# --- what both share ------------------------------------------------------------------------------


def _truncates(top_k: int, top_p: float, vocab_size: int) -> bool:
    return 0 < top_k < vocab_size or top_p < 1.0


def share_of(total: Any, top_p: float) -> Any:
    """`top_p` * total in integers, rounded up: at least 1, so the likeliest token is admitted."""
    share = max(1, round(top_p * (1 << _TOP_P_BITS)))
    rest = (1 << _TOP_P_BITS) - 1
    return (total >> _TOP_P_BITS) * share + (((total & rest) * share + rest) >> _TOP_P_BITS)


def weights_of(scaled: Any, top: Any, ops: Any) -> Any:
    """2^30 * exp(scaled - top), float32, whose fraction is to be cut off; 0 where below exp(-21).

    exp(x) = 2^n * exp(r) with |r| <= ln(2) / 2, by Taylor's polynomial.
    """
    x = scaled - top
    tiny = x < ops.f32(_LOWEST)
    x = ops.where(tiny, ops.f32(_LOWEST), x)
    n = ops.to_int(x * ops.f32(1.4426950408889634) - ops.f32(0.5))  # truncates: to the nearest
    whole = ops.to_float(n)
    r = (x - whole * ops.f32(_LN2_HIGH)) - whole * ops.f32(_LN2_LOW)
    total = r * ops.f32(_EXP_TERMS[0])
    for term in _EXP_TERMS[1:-1]:
        total = (total + ops.f32(term)) * r
    total = total + ops.f32(_EXP_TERMS[-1])
    exact = total * ops.from_bits((n + (127 + _WEIGHT_BITS)) << 23)
    return ops.where(tiny, ops.f32(0.0), exact)
