"""What an audit finds at each token, given the logits of the policy that is claimed. Pure.

A token is the argmax of logits / temperature + noise, and the noise is known. Its *margin* is how
far its own sum lies below the greatest: 0 for the token that the policy draws, a little above 0
where rounding has swapped two that are all but equal, and large for a token that was never drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from echo_p2p.sampling import gumbel_torch, keys_at, keys_to_torch, perturbed, sample


@dataclass(frozen=True)
class TokenEvidence:
    """`margins` [T] and `differences` [T] = |claimed - derived| log-probability, all >= 0.

    A claim that is not a number is infinitely far off.
    """

    margins: torch.Tensor
    differences: torch.Tensor


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
) -> TokenEvidence:
    """Evidence of T tokens.

    Args:
        logits: raw logits that predict each token, [T, vocabulary].
        tokens: the claimed tokens, int64 [T].
        logprobs: their claimed raw log-probabilities, [T].
        keys: the noise key of each token's row, int32 [T, 2].
    """
    logits = logits.float()
    drawn = sample(logits, keys, temperature)
    margins = torch.zeros(len(tokens), device=logits.device)
    odd = (drawn != tokens).nonzero()[:, 0]  # few in honest work: only there is all noise needed
    if len(odd):
        sums = perturbed(logits[odd], gumbel_torch(keys[odd], logits.shape[-1]), temperature)
        claimed = sums.gather(-1, tokens[odd, None])[:, 0]
        margins[odd] = sums.amax(-1) - claimed
    derived = -torch.nn.functional.cross_entropy(logits, tokens, reduction="none")
    differences = (logprobs - derived).abs()
    return TokenEvidence(margins, differences.nan_to_num(nan=float("inf"), posinf=float("inf")))
