"""What an update optimises, and what is measured of it: pure functions on tensors.

Shapes: per-token tensors are flat, [N]: the answer tokens of all rollouts end to end, with neither
prompts nor padding among them, so no function here needs a mask. `behaviour` is the log-probability
that the node which sampled a token gave it; `logprobs` is the learner's.

- GRPO, group-relative advantages: Shao et al. 2024, arXiv 2402.03300; without the division by the
  standard deviation it is Dr. GRPO: Liu et al. 2025, arXiv 2503.20783, which also has the global
  normalisation used here.
- PPO's clipped ratio: Schulman et al. 2017, arXiv 1707.06347; clipped further above than below:
  DAPO, Yu et al. 2025, arXiv 2503.14476.
- The ceiling where the advantage is negative (dual clip): Ye et al. 2020, arXiv 1912.09729;
  INTELLECT-2's two-sided clip, arXiv 2505.07291.
"""

from __future__ import annotations

import torch

RATIO_CEILING = 4.0
"""Greatest ratio that pushes a token down. Above it a token that the learner likes, and a node
claimed to have drawn with next to no probability, would outweigh a whole batch."""

_MAX_LOG_RATIO = 20.0  # keeps exp() finite, so that a clipped token's zero gradient is not NaN


def group_advantages(rewards: torch.Tensor, *, scale: bool = False) -> torch.Tensor:
    """Rewards [groups, G] to advantages [groups, G]: reward minus the group's mean.

    Where all rewards of a group are the same its advantages are exactly zero. `scale` also divides
    by the group's standard deviation.
    """
    same = rewards.amax(-1, keepdim=True) == rewards.amin(-1, keepdim=True)
    advantages = (rewards - rewards.mean(-1, keepdim=True)).masked_fill(same, 0.0)
    if scale:
        advantages = advantages / (rewards.std(-1, keepdim=True) + 1e-4)
    return advantages


def clipped_loss(
    logprobs: torch.Tensor,
    behaviour: torch.Tensor,
    advantages: torch.Tensor,
    *,
    clip: tuple[float, float],
    normaliser: float,
) -> torch.Tensor:
    """Token-level clipped surrogate, summed over [N] tokens and divided by `normaliser`: a scalar.

    With r = exp(logprobs - behaviour), the loss of a token of advantage A is
    -min(r A, clamp(r, 1 - clip[0], 1 + clip[1]) A), and no more than RATIO_CEILING |A|.
    The normaliser is one number for the whole update (rollouts times the length limit): a token
    weighs the same in a short answer as in a long one, however the update is cut into batches.
    """
    ratio = (logprobs - behaviour).clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO).exp()
    clipped = ratio.clamp(1.0 - clip[0], 1.0 + clip[1])
    gain = torch.minimum(ratio * advantages, clipped * advantages)
    gain = torch.where(advantages < 0, torch.maximum(gain, RATIO_CEILING * advantages), gain)
    return -gain.sum() / normaliser


def ratio_metrics(log_ratios: torch.Tensor, clip: tuple[float, float]) -> dict[str, float]:
    """How far learner and nodes are apart, from the log ratios [N] of an update's tokens.

    `clip_fraction`: share of ratios r outside the clip range. `kl`: KL(node || learner) in nats a
    token, by the estimate r - 1 - log r, which is never negative (Schulman 2020, "Approximating KL
    divergence"). `ratio_mean`, `ratio_max`. `ess`: effective sample size as a share of the tokens,
    (sum r)^2 / (N sum r^2) (Kong 1992); 1 when all weigh the same.
    """
    if not log_ratios.numel():
        return {"clip_fraction": 0.0, "kl": 0.0, "ratio_mean": 1.0, "ratio_max": 1.0, "ess": 1.0}
    log_ratios = log_ratios.double().clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)
    ratio = log_ratios.exp()
    outside = (ratio < 1.0 - clip[0]) | (ratio > 1.0 + clip[1])
    return {
        "clip_fraction": float(outside.double().mean()),
        "kl": float((ratio - 1.0 - log_ratios).mean()),
        "ratio_mean": float(ratio.mean()),
        "ratio_max": float(ratio.max()),
        "ess": float(ratio.sum().square() / (ratio.numel() * ratio.square().sum())),
    }
