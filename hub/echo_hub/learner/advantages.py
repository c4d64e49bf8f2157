"""Advantages: how much better an answer, or a token of it, was than expected. Pure.

Of groups: rewards [groups, G] to advantages [groups, G], one for all tokens of an answer. Where all
rewards of a group are the same its advantages are exactly zero.

- GRPO: Shao et al. 2024, arXiv 2402.03300. Dr. GRPO: Liu et al. 2025, arXiv 2503.20783.
- RLOO: Ahmadian et al. 2024, arXiv 2402.14740.

Of tokens, with a value function: rows of tokens [R, T] in the order they were sampled, and a mask
[R, T] that is True where there is one. What is not a token is passed over, wherever it stands, and
gets 0: what it holds never matters. After the last token of a row nothing comes (its value is 0).

- GAE: Schulman et al. 2016, arXiv 1506.02438.
- V-trace: Espeholt et al. 2018, arXiv 1802.01561.
"""

from __future__ import annotations

import torch

GROUP_DEVIATION_FLOOR = 1e-4
"""Added to a group's standard deviation before it divides."""


def dr_grpo(rewards: torch.Tensor) -> torch.Tensor:
    """Reward minus the group's mean: [groups, G] to [groups, G]."""
    return (rewards - rewards.mean(-1, keepdim=True)).masked_fill(_equal(rewards), 0.0)


def grpo(rewards: torch.Tensor) -> torch.Tensor:
    """Reward minus the group's mean, over its sample standard deviation plus 1e-4."""
    return dr_grpo(rewards) / (rewards.std(-1, keepdim=True) + GROUP_DEVIATION_FLOOR)


def rloo(rewards: torch.Tensor) -> torch.Tensor:
    """Reward minus the mean of the others of its group; G is 2 or more."""
    others = (rewards.sum(-1, keepdim=True) - rewards) / (rewards.shape[-1] - 1)
    return (rewards - others).masked_fill(_equal(rewards), 0.0)


def gae(
    rewards: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor,
    *,
    discount: float,
    decay: float,
) -> torch.Tensor:
    """Generalised advantage estimates [R, T] of tokens with these rewards and values [R, T].

    A_t = sum over l of (discount decay)^l d_{t+l}, with d_t = r_t + discount V_{t+1} - V_t. The
    target of the value function is A_t + V_t.
    """
    ones = torch.ones_like(values)
    return _backward_sum(rewards, values, ones, discount * decay * ones, mask, discount)


def vtrace(
    rewards: torch.Tensor,
    values: torch.Tensor,
    log_ratios: torch.Tensor,
    mask: torch.Tensor,
    *,
    discount: float,
    ceilings: tuple[float, float],
) -> tuple[torch.Tensor, torch.Tensor]:
    """V-trace's targets of the value function [R, T], and the advantages [R, T] that follow.

    With rho_t = min(ceilings[0], ratio_t) and c_t = min(ceilings[1], ratio_t), the ratio being the
    learner's probability over the node's: target v_t = V_t + rho_t d_t + discount c_t (v_{t+1} -
    V_{t+1}). The advantage is r_t + discount v_{t+1} - V_t, not yet times rho_t: a loss weighs it
    with a ratio of its own.
    """
    ratio = log_ratios.clamp(-20.0, 20.0).exp()
    rho, c = ratio.clamp(max=ceilings[0]), ratio.clamp(max=ceilings[1])
    excess = _backward_sum(rewards, values, rho, discount * c, mask, discount)
    targets = (values + excess).masked_fill(~mask, 0.0)
    advantages = torch.zeros_like(values)
    after = torch.zeros_like(values[:, 0])
    for t in reversed(range(values.shape[1])):
        here = mask[:, t]
        advantages[:, t] = torch.where(
            here, rewards[:, t] + discount * after - values[:, t], torch.zeros_like(after)
        )
        after = torch.where(here, targets[:, t], after)
    return targets, advantages


def whitened(advantages: torch.Tensor) -> torch.Tensor:
    """Advantages [N] of an update's tokens, moved to mean 0 and scaled to deviation 1."""
    centred = advantages - advantages.mean()
    return centred / (centred.square().mean() + 1e-8).sqrt()


def _equal(rewards: torch.Tensor) -> torch.Tensor:
    # 0.1 * 7 / 7 is not 0.1 in float32: the mean must not be trusted here
    return rewards.amax(-1, keepdim=True) == rewards.amin(-1, keepdim=True)


def _backward_sum(
    rewards: torch.Tensor,
    values: torch.Tensor,
    weight: torch.Tensor,
    carry: torch.Tensor,
    mask: torch.Tensor,
    discount: float,
) -> torch.Tensor:
    """x_t = weight_t (r_t + discount V_{t+1} - V_t) + carry_t x_{t+1}, over each row's tokens."""
    found = torch.zeros_like(values)
    total, after = torch.zeros_like(values[:, 0]), torch.zeros_like(values[:, 0])
    for t in reversed(range(values.shape[1])):
        here = mask[:, t]
        error = rewards[:, t] + discount * after - values[:, t]
        total = torch.where(here, weight[:, t] * error + carry[:, t] * total, total)
        after = torch.where(here, values[:, t], after)
        found[:, t] = torch.where(here, total, torch.zeros_like(total))
    return found
