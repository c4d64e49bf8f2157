"""What is measured of an update. Pure; tensors are flat, [N], as in `losses`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import torch

from echo_hub.learner.losses import MAX_LOG_RATIO


def ratio_metrics(log_ratios: torch.Tensor) -> dict[str, float]:
    """How far learner and nodes are apart, from the log ratios [N] of an update's tokens.

    `kl`: KL(node || learner) in nats a token, by the estimate r - 1 - log r, which is never
    negative (Schulman 2020, "Approximating KL divergence"). `ratio_mean`, `ratio_max`. `ess`:
    effective sample size as a share of the tokens, (sum r)^2 / (N sum r^2) (Kong 1992); 1 when all
    weigh the same.
    """
    if not log_ratios.numel():
        return {"kl": 0.0, "ratio_mean": 1.0, "ratio_max": 1.0, "ess": 1.0}
    log_ratios = log_ratios.double().clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    ratio = log_ratios.exp()
    return {
        "kl": float((ratio - 1.0 - log_ratios).mean()),
        "ratio_mean": float(ratio.mean()),
        "ratio_max": float(ratio.max()),
        "ess": float(ratio.sum().square() / (ratio.numel() * ratio.square().sum())),
    }


def clip_fraction(ratios: torch.Tensor, clip: tuple[float, float]) -> float:
    """Share of the ratios [N] that a loss was given which lie outside its clip range."""
    ratios = ratios.double()
    outside = (ratios < 1.0 - clip[0]) | (ratios > 1.0 + clip[1])
    return float(outside.double().mean()) if ratios.numel() else 0.0


def mismatch(log_ratios: torch.Tensor) -> dict[str, float]:
    """How far a node's arithmetic is from the learner's, from the log ratios of tokens of lag 0.

    `mismatch_kl` is KL(node || learner) as in `ratio_metrics`, `mismatch_mean` and `mismatch_max`
    are of |log ratio|. Without such tokens there is only `lag0_tokens`.
    """
    if not log_ratios.numel():
        return {"lag0_tokens": 0.0}
    apart = log_ratios.abs()
    return {
        "lag0_tokens": float(apart.numel()),
        "mismatch_kl": ratio_metrics(log_ratios)["kl"],
        "mismatch_mean": float(apart.mean()),
        "mismatch_max": float(apart.max()),
    }


def lag_metrics(lags: Iterable[int]) -> dict[str, float]:
    """Of an update's groups: `lag_mean`, `lag_max`, and `lag_0`, `lag_1`, ... how many had each."""
    counts = Counter(lags)
    total = counts.total()
    return {
        "lag_mean": sum(lag * count for lag, count in counts.items()) / total,
        "lag_max": float(max(counts)),
        **{f"lag_{lag}": float(count) for lag, count in sorted(counts.items())},
    }


def cosine(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> float:
    """Cosine between two gradients, each a tensor a weight; 0 if one of them is nothing.

    Between consecutive updates it is near 1 when stale rollouts push the same way again and again
    (Gradient Alignment Control, arXiv 2603.01501).
    """
    dot = sum(float((a.double() * b.double()).sum()) for a, b in zip(one, other, strict=True))
    squares = [sum(float(t.double().square().sum()) for t in each) for each in (one, other)]
    norm = (squares[0] * squares[1]) ** 0.5
    return dot / norm if norm else 0.0
