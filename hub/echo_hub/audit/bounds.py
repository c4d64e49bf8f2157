"""Exact upper confidence bounds of rates that were counted. Pure.

For a binomial count Clopper and Pearson (1934), for a Poisson count Garwood (1936): the rate at
which so few events, or fewer, would be as unlikely as 1 - confidence.
"""

from __future__ import annotations

import math
from collections.abc import Callable

_STEPS = 200


def binomial_upper(count: int, trials: int, confidence: float) -> float:
    """Upper bound of a probability, after `count` events in `trials`."""
    if count >= trials:
        return 1.0
    return _where_unlikely(lambda p: _binomial_cdf(count, trials, p), 1.0, confidence)


def poisson_upper(count: int, exposure: float, confidence: float) -> float:
    """Upper bound of a rate per unit of exposure, after `count` events in `exposure` units."""
    if exposure <= 0:
        return math.inf
    most = count + 20.0 * math.sqrt(count + 1.0) + 50.0
    return _where_unlikely(lambda mean: _poisson_cdf(count, mean), most, confidence) / exposure


def _where_unlikely(cdf: Callable[[float], float], most: float, confidence: float) -> float:
    low, high = 0.0, most
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if cdf(middle) > 1.0 - confidence else (low, middle)
    return high


def _binomial_cdf(count: int, trials: int, p: float) -> float:
    if p <= 0.0:
        return 1.0
    if p >= 1.0:
        return 0.0
    ways = math.lgamma(trials + 1)
    terms = (
        ways - math.lgamma(k + 1) - math.lgamma(trials - k + 1)
        + k * math.log(p) + (trials - k) * math.log1p(-p)
        for k in range(count + 1)
    )  # fmt: skip
    return math.fsum(map(math.exp, terms))


def _poisson_cdf(count: int, mean: float) -> float:
    if mean <= 0.0:
        return 1.0
    terms = (k * math.log(mean) - mean - math.lgamma(k + 1) for k in range(count + 1))
    return math.fsum(map(math.exp, terms))
