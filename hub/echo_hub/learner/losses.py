"""Losses of an update's tokens: pure functions.

Shapes: per-token tensors are flat, [N]: the tokens that were sampled, of all rollouts end to end,
with neither prompts nor padding nor what an environment wrote among them, so no function here needs
a mask. `lengths` [R] says how many of them each rollout has, in order. `logprobs` are the
learner's and carry the gradient; `anchor` is what its ratio is taken to: the node's
log-probabilities, or a proximal policy's (`corrections`). Every loss here is per token; how tokens
are added up is `added_up`, the same however an update is cut into micro-batches.

- PPO's clipped ratio: Schulman et al. 2017, arXiv 1707.06347; clipped further above than below, and
  averaged over tokens: DAPO, Yu et al. 2025, arXiv 2503.14476.
- GRPO, averaged within each answer first: Shao et al. 2024, arXiv 2402.03300; divided by one number
  for all: Dr. GRPO, Liu et al. 2025, arXiv 2503.20783.
- The ceiling where the advantage is negative (dual clip): Ye et al. 2020, arXiv 1912.09729;
  INTELLECT-2's two-sided clip, arXiv 2505.07291.
- GSPO, one ratio a sequence: Zheng et al. 2025, arXiv 2507.18071.
- CISPO, a truncated weight instead of a clipped ratio: MiniMax-M1, arXiv 2506.13585.
- DPO: Rafailov et al. 2023, arXiv 2305.18290.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch.nn import functional

RATIO_CEILING = 4.0
"""Greatest ratio that pushes a token down, by default. Above it a token that the learner likes, and
a node claimed to have drawn with next to no probability, would outweigh a whole batch."""

MAX_LOG_RATIO = 20.0
"""Keeps exp() finite, so that a clipped token's zero gradient is not NaN."""

Sum = Literal["dr_grpo", "answers", "tokens"]
"""How the tokens of an update are added up (`added_up`)."""


def ratio_of(logprobs: torch.Tensor, anchor: torch.Tensor) -> torch.Tensor:
    """exp(logprobs - anchor) [N], the difference held within +-20."""
    return (logprobs - anchor).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def sequence_ratio(
    logprobs: torch.Tensor, anchor: torch.Tensor, lengths: torch.Tensor
) -> torch.Tensor:
    """GSPO's ratio of each rollout, repeated for its tokens [N]: the geometric mean of theirs."""
    mean = row_sums(logprobs - anchor, lengths) / lengths
    ratio = mean.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    return ratio.repeat_interleave(lengths)


def row_sums(values: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Per-token values [N] added up in each rollout: [R]."""
    rows = torch.arange(len(lengths), device=values.device).repeat_interleave(lengths)
    return torch.zeros(len(lengths), dtype=values.dtype, device=values.device).index_add(
        0, rows, values
    )


def clipped(
    ratio: torch.Tensor,
    advantages: torch.Tensor,
    *,
    clip: tuple[float, float],
    ceiling: float = RATIO_CEILING,
) -> torch.Tensor:
    """-min(r A, clamp(r, 1 - clip[0], 1 + clip[1]) A), and no more than ceiling |A|: [N].

    The ceiling holds where A is negative; 0 is none. `ratio` is a token's or its sequence's.
    """
    held = ratio.clamp(1.0 - clip[0], 1.0 + clip[1])
    gain = torch.minimum(ratio * advantages, held * advantages)
    if ceiling:
        gain = torch.where(advantages < 0, torch.maximum(gain, ceiling * advantages), gain)
    return -gain


def cispo(
    logprobs: torch.Tensor, anchor: torch.Tensor, advantages: torch.Tensor, *, ceiling: float
) -> torch.Tensor:
    """-min(r, ceiling) A log pi, the ratio r without a gradient: [N].

    A token of a large ratio weighs less and is never left out, as clipping would.
    """
    weight = ratio_of(logprobs.detach(), anchor).clamp(max=ceiling)
    return -weight * advantages * logprobs


def value_errors(
    values: torch.Tensor, targets: torch.Tensor, before: torch.Tensor, *, clip: float = 0.0
) -> torch.Tensor:
    """PPO's loss of the value function: half the squared error [N].

    With `clip`, it is the larger of that and the error of a value that moved at most `clip` from
    what it was `before` the update. 0 is no clip.
    """
    error = (values - targets).square()
    if clip:
        held = before + (values - before).clamp(-clip, clip)
        error = torch.maximum(error, (held - targets).square())
    return 0.5 * error


def dpo(
    logprobs: torch.Tensor, reference: torch.Tensor, lengths: torch.Tensor, *, beta: float
) -> torch.Tensor:
    """DPO's loss of each pair [R / 2]: -log sigmoid(beta (log ratio better - log ratio worse)).

    Rollouts come in pairs, the better first. A rollout's log ratio is the sum over its tokens of
    the learner's log-probability minus the reference's.
    """
    log_ratios = row_sums(logprobs - reference, lengths)
    return -functional.logsigmoid(beta * (log_ratios[0::2] - log_ratios[1::2]))


def added_up(
    how: Sum,
    each: torch.Tensor,
    lengths: torch.Tensor,
    *,
    rollouts: int,
    tokens: int,
    limit: int,
) -> torch.Tensor:
    """Losses of tokens [N] to one number; of a part of an update, its share.

    - `dr_grpo`: over rollouts x limit: a token weighs the same in a short answer as in a long one,
      and in an update of short answers as in one of long ones.
    - `answers`: the mean over rollouts of the mean over each one's tokens (GRPO, GSPO).
    - `tokens`: the mean over the update's tokens (DAPO, CISPO, PPO).

    Args:
        rollouts, tokens: of the whole update, those that have no advantage included.
        limit: most tokens an answer may have.
    """
    if how == "answers":
        return (row_sums(each, lengths) / lengths).sum() / rollouts
    return each.sum() / (rollouts * limit if how == "dr_grpo" else tokens)
