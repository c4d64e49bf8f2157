"""What an audit finds at each token, given the logits of the policy that is claimed. Pure.

A token is the argmax of logits / temperature + noise, and the noise is known. Its *margin* is how
far its own sum lies below the greatest: 0 for the token that the policy draws, a little above 0
where rounding has swapped two that are all but equal, and large for a token that was never drawn.
With top-k or top-p, `border` says what it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from echo_hub.audit.border import border_margins
from echo_p2p.sampling import gumbel_torch, keys_at, keys_to_torch, sample, scaled_logits

_ROW_ELEMENTS = 1 << 22  # of noise at once, when much of a group is false


class TokenEvidence(NamedTuple):
    """Of each token [T]: `margins`, `differences` = |claimed - derived| log-probability, `chances`
    that an independent draw is another token, and sampling entropy in `bits`; all >= 0.

    A claim that is not a number is infinitely far off.
    """

    margins: torch.Tensor
    differences: torch.Tensor
    chances: torch.Tensor
    bits: torch.Tensor


def group_keys(
    seed: int, lengths: Sequence[int], device: torch.device | str = "cpu"
) -> torch.Tensor:
    """Noise keys of a group's answers laid end to end: int32 [sum of lengths, 2].

    Answer i is rollout index i of the lease with this seed, and its positions count from 0.
    """
    indices = np.repeat(np.arange(len(lengths)), lengths)
    positions = np.concatenate([np.arange(length) for length in lengths])
    return keys_to_torch(keys_at(seed, indices, positions), device)


def token_evidence(
    logits: torch.Tensor,
    tokens: torch.Tensor,
    logprobs: torch.Tensor,
    *,
    keys: torch.Tensor,
    temperature: float,
    top_k: int = 0,
    top_p: float = 1.0,
) -> TokenEvidence:
    """Evidence of T tokens.

    Args:
        logits: raw logits that predict each token, [T, vocabulary].
        tokens: the claimed tokens, int64 [T].
        logprobs: their claimed raw log-probabilities, [T].
        keys: the noise key of each token's row, int32 [T, 2].
    """
    logits = logits.float()
    drawn = sample(logits, keys, temperature, top_k, top_p)
    margins = torch.zeros(len(tokens), device=logits.device)
    odd = (drawn != tokens).nonzero()[:, 0]  # few in honest work: only there is all noise needed
    for rows in torch.split(odd, max(1, _ROW_ELEMENTS // logits.shape[-1])):
        scaled = logits[rows] / temperature
        noise = gumbel_torch(keys[rows], logits.shape[-1])
        if top_k or top_p < 1.0:
            margins[rows] = border_margins(scaled, noise, tokens[rows], top_k=top_k, top_p=top_p)
        else:
            sums = scaled + noise
            margins[rows] = sums.amax(-1) - sums.gather(-1, tokens[rows, None])[:, 0]
    derived = logits.log_softmax(-1)
    differences = (logprobs - derived.gather(-1, tokens[:, None])[:, 0]).abs()
    if temperature != 1.0 or top_k or top_p < 1.0:
        derived = scaled_logits(logits, temperature, top_k, top_p).log_softmax(-1)
    p = derived.exp()
    return TokenEvidence(
        margins=margins,
        differences=differences.nan_to_num(nan=float("inf"), posinf=float("inf")),
        chances=(1.0 - (p * p).sum(-1)).clamp(min=0.0),
        bits=torch.special.entr(p).sum(-1) / np.log(2.0),
    )
