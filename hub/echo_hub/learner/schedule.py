"""The step size of an update, as a function of how old its rollouts are. Pure, and without state.

A gradient of lag L is the gradient of where the policy was L steps ago. To first order its error is
the distance gone since: the step size times L. So a step that is safe at lag 0 is too long at lag
L, and what has to stay bounded is `rate * lag` (Song et al. 2026, "Staleness-Learning Rate Scaling
Laws for Asynchronous RLHF", arXiv 2607.01083: the bias of a stale update is O(S * rate)). Dividing
by 1 + c * lag holds that product below rate / c and leaves lag 0 alone; for delayed SGD the same
rule is Zhang et al. 2016, arXiv 1511.05950, with c = 1.

The lag is that of the batch, measured, not the bound S: a run whose nodes keep up pays nothing for
a bound that is wider than it needs.

`reliability` is the other way to measure age: by what it has done to the importance ratios. The
variance of a weighted mean grows as 1 / ESS, as if the batch were so much smaller, and AdamW's step
scales with the root of the batch (Huang et al. 2026, VCPO, arXiv 2602.17616).
"""

from __future__ import annotations

import math

from echo_hub.config import LearnerSection


def step_size(rules: LearnerSection, *, lag: float, ess: float, update: int) -> float:
    """The step size of update number `update` (from 1), at this mean lag and effective sample size.

    `ess` is a share of the tokens, in (0, 1].
    """
    rate = rules.learning_rate * warmup(update, rules.warmup_updates)
    rate *= coupling(lag, rules.rate_coupling)
    return rate * reliability(ess) if rules.rate_by_ess else rate


def coupling(lag: float, c: float) -> float:
    """1 / (1 + c * lag): what the step size is multiplied by at a mean lag, in (0, 1].

    Args:
        lag: mean lag of the rollouts that have a gradient, in versions.
        c: how strongly; 0 switches it off.
    """
    return 1.0 / (1.0 + c * lag)


def reliability(ess: float) -> float:
    """sqrt(ess): what the step size is multiplied by at an effective sample size in (0, 1]."""
    return math.sqrt(min(1.0, max(0.0, ess)))


def warmup(update: int, updates: int) -> float:
    """Rises linearly to 1 over the first `updates` updates. `update` counts from 1."""
    return min(1.0, update / updates) if updates else 1.0
