"""Clip bounds that a batch chooses for itself, so that what is pushed down does not drown the rest.

BAPO: Xi et al. 2025, "Balanced Policy Optimization with Adaptive Clipping", arXiv 2510.18927. Under
a stale policy, tokens of negative advantage dominate the loss, and a fixed clip cuts off rather the
tokens of positive advantage that have become likely. So the bounds of an update are moved up, the
lower within [0.6, 0.9] and the upper within [1.2, 3.0], until tokens of positive advantage make up
`SHARE` of the loss: raising the upper bound lets more of the positive in, raising the lower one
leaves out more of the negative. The values are the paper's; the order, the upper bound first, is
that of its algorithm (its published code has the opposite order).

Pure. Shapes: flat tensors [N], the tokens of a whole update, so that the bounds do not depend on
how it was cut into micro-batches.
"""

from __future__ import annotations

import torch

SHARE = 0.4
"""Of the loss, that is to come from tokens of positive advantage."""
LOWER, UPPER = (0.6, 0.9), (1.2, 3.0)
"""Where each ratio bound begins, and how far it may go."""
LOWER_STEP, UPPER_STEP = 0.02, 0.05


def positive_share(
    ratio: torch.Tensor, advantages: torch.Tensor, bounds: tuple[float, float]
) -> float:
    """Share of the clipped surrogate that tokens of positive advantage make up; 1 if it is 0.

    A token counts |min(r A, clamp(r, *bounds) A)|.
    """
    clipped = ratio.clamp(*bounds)
    gain = torch.minimum(ratio * advantages, clipped * advantages).double()
    positive, negative = float(gain.clamp(min=0).sum()), float(-gain.clamp(max=0).sum())
    return positive / (positive + negative) if positive + negative > 0.0 else 1.0


def balanced_bounds(ratio: torch.Tensor, advantages: torch.Tensor) -> tuple[float, float]:
    """The first bounds (lower, upper) on the ratio that give the positive their share.

    If none does, the last ones tried.
    """
    highs = _steps(UPPER, UPPER_STEP)
    lows = _steps(LOWER, LOWER_STEP)
    tries = [(lows[0], high) for high in highs] + [(low, highs[-1]) for low in lows[1:]]
    for bounds in tries:
        if positive_share(ratio, advantages, bounds) >= SHARE:
            return bounds
    return tries[-1]


def _steps(limits: tuple[float, float], step: float) -> list[float]:
    first, last = limits
    return [min(last, round(first + i * step, 6)) for i in range(round((last - first) / step) + 1)]
