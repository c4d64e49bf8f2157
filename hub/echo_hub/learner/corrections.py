"""Importance corrections: what becomes of tokens that another policy sampled. Pure.

Three policies: the behaviour that sampled (the node's version, and its arithmetic), the proximal
one that an update steps from, and the learner's as it moves. Tensors are flat [N] as in `losses`,
and nothing here carries a gradient. A correction gives each token a weight pi_proximal /
pi_behaviour, and the loss takes its ratio to the proximal policy instead of the behaviour.

- Decoupling them: Hilton et al. 2021, arXiv 2110.00641; AReaL, Fu et al. 2025, arXiv 2505.24298.
- Truncated weights (TIS): Ionides 2008; for the gap between engine and trainer, Yao et al. 2025.
- Masked ones (MIS): Liu et al. 2025, "When speed kills stability"; IcePop, arXiv 2510.18855.
- The proximal policy interpolated instead of computed: A-3PO, arXiv 2512.06547.
"""

from __future__ import annotations

import torch

from echo_hub.learner.losses import MAX_LOG_RATIO, row_sums


def importance(
    proximal: torch.Tensor, behaviour: torch.Tensor, lengths: torch.Tensor, *, sequence: bool
) -> torch.Tensor:
    """pi_proximal / pi_behaviour of each token [N]; with `sequence`, of its whole rollout."""
    log_ratios = proximal - behaviour
    if sequence:
        log_ratios = row_sums(log_ratios, lengths).repeat_interleave(lengths)
    return log_ratios.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def truncated(weights: torch.Tensor, bounds: tuple[float, float]) -> torch.Tensor:
    """Weights [N] held within the bounds."""
    return weights.clamp(*bounds)


def masked(weights: torch.Tensor, bounds: tuple[float, float]) -> torch.Tensor:
    """Weights [N], 0 where they are outside the bounds: such a token counts nothing."""
    return weights.masked_fill((weights < bounds[0]) | (weights > bounds[1]), 0.0)


def loglinear_proximal(
    logprobs: torch.Tensor, behaviour: torch.Tensor, lags: torch.Tensor
) -> torch.Tensor:
    """A-3PO's proximal log-probabilities [N], without a forward pass.

    log pi_behaviour + a (log pi - log pi_behaviour) with a = lag / (lag + 1): the update makes a
    version one newer than the proximal one, which is `lag` newer than the behaviour. With lag 0 the
    proximal policy is the behaviour.
    """
    share = lags / (lags + 1.0)
    return behaviour + share * (logprobs.detach() - behaviour)
