"""What is taken off for leaving the reference policy, for certainty, for length. Pure.

The reference policy is the base model: the policy with its adapter switched off. The hub's network
process reads this module too, so it does not import torch.

- Estimates of KL(learner || reference) from a sample: Schulman 2020, "Approximating KL divergence".
- The soft over-long punishment: DAPO, Yu et al. 2025, arXiv 2503.14476, equation 13.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from echo_hub.learner.messages import TrainRollout

if TYPE_CHECKING:
    import torch

Estimator = Literal["k1", "k2", "k3"]

_MAX_LOG_RATIO = 20.0


def kl(logprobs: torch.Tensor, reference: torch.Tensor, estimator: Estimator) -> torch.Tensor:
    """KL of each token from the reference [N], in nats; differentiable.

    With d = log pi - log pi_reference: k1 is d, k2 is d^2 / 2, k3 is exp(-d) - 1 + d. k3 has the
    least variance and is never negative; the gradient of k2 is that of the true KL on average, that
    of k1 is on average nothing.
    """
    apart = (logprobs - reference).clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)
    if estimator == "k1":
        return apart
    if estimator == "k2":
        return 0.5 * apart.square()
    return (-apart).exp() - 1.0 + apart


def overlong(length: int, *, limit: int, tolerance: int) -> float:
    """What is added to the reward of an answer of so many tokens: 0 to -1.

    Nothing up to `limit - tolerance`, then falling linearly to -1 at `limit`, and -1 beyond.
    """
    if not tolerance:
        return 0.0
    return -min(1.0, max(0.0, (length - (limit - tolerance)) / tolerance))


def shaped(
    rewards: Sequence[float], lengths: Sequence[int], *, limit: int, tolerance: int
) -> list[float]:
    """Rewards with the over-long penalty; `lengths` are in sampled tokens."""
    return [
        reward + overlong(length, limit=limit, tolerance=tolerance)
        for reward, length in zip(rewards, lengths, strict=True)
    ]


def all_alike(rollouts: Sequence[TrainRollout], *, limit: int, tolerance: int) -> bool:
    """Whether a group's rewards, with the over-long penalty, are all the same."""
    lengths = [
        len(one.tokens) - sum(end - start for start, end in one.observed) for one in rollouts
    ]
    worth = shaped([one.reward for one in rollouts], lengths, limit=limit, tolerance=tolerance)
    return min(worth) == max(worth)
