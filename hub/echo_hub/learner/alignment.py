"""Gradient alignment control: a step may not go on and on where the last one already went.

After Xu et al. 2026, GAC, arXiv 2603.01501. What is theirs: consecutive policy gradients are nearly
orthogonal where rollouts are fresh, and stay aligned where they are stale, because the rollouts
do not yet show what the last steps did; so their cosine is the sign of overshooting, and the part
of the gradient along the last one is what to hold back. What is ours: the one bound. Up to `limit`
the gradient is left as it is; above it the part along the last gradient is shortened until the
cosine *is* `limit`, so the change is continuous; a cosine below zero is never touched. The paper
also leaves out an update altogether above a second threshold, which we do not.

Pure. A gradient is a list of tensors, one a weight; products are over all of them together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch


def excess(
    gradient: Sequence[torch.Tensor], previous: Sequence[torch.Tensor], limit: float
) -> float:
    """How many times `previous` to take off `gradient`, so that their cosine is at most `limit`.

    Args:
        limit: in [0, 1]. 0 leaves nothing that points the same way; 1 is no bound.

    Returns:
        0 or more; 0 if their cosine is at most `limit` as it is, or one of them is zero.
    """
    own, last = _dot(gradient, gradient), _dot(previous, previous)
    both = _dot(gradient, previous)
    if both <= limit * math.sqrt(own * last):
        return 0.0
    # the part across stays, and what remains along it is to have the tangent of the limit
    across = math.sqrt(max(0.0, own - both * both / last))
    kept = limit * across / math.sqrt((1.0 - limit * limit) * last)
    return max(0.0, both / last - kept)


def _dot(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> float:
    """In float64: `excess` takes the difference of squares that may be nearly the same."""
    return math.fsum(
        float((a.double() * b.double()).sum()) for a, b in zip(one, other, strict=True)
    )
