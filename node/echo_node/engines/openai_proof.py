"""Whether a server draws its tokens as `echo_p2p.sampling` says, told from a few of its answers.

A server shows only the log-probabilities of its likeliest tokens. That is enough: the noise of
every token is known here, so a token that is not shown is bounded by the least shown
log-probability and its own noise. A position whose winner is certain in this way is *decided*.
One decided position that differs disproves a server. Agreement proves it when the tokens that were
decided were unlikely enough, all together, that a server which draws them in any other way would
have hit them by chance. Pure functions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from echo_node.engines.base import Job
from echo_p2p.noise import gumbel_numpy, row_keys
from echo_p2p.wire import Sampling

ENOUGH_BITS = 30.0
"""Another sampler passes once in 2^30 tries."""

_LEAST_RAW = -5000.0
_SLACK = 1e-3  # rounding of log-probabilities that went through JSON and another sum


@dataclass(frozen=True)
class Shown:
    """One position of an answer: the token, and what the server shows of the likeliest ones."""

    token: int
    logprob: float
    top: Mapping[int, float]


@dataclass(frozen=True)
class Proof:
    """What some answers show."""

    decided: int = 0
    differing: int = 0
    bits: float = 0.0

    def __add__(self, other: Proof) -> Proof:
        return Proof(
            self.decided + other.decided,
            self.differing + other.differing,
            self.bits + other.bits,
        )


def are_raw(answer: Sequence[Shown]) -> bool:
    """Whether log-probabilities are of the policy itself, before anything was drawn or cut.

    A server that shows them after our logits processor shows 0 for the token it drew, and for the
    others what no policy computes.
    """
    for one in answer:
        values = {**one.top, one.token: one.logprob}.values()
        if not all(_LEAST_RAW < value < _SLACK for value in values):
            return False
        if sum(map(math.exp, values)) > 1.0 + _SLACK:
            return False
    return True


def proof(answer: Sequence[Shown], *, job: Job, vocab_size: int) -> Proof:
    """What one answer shows about how it was drawn. Only top-k may truncate, not top-p."""
    total = Proof()
    rows = [(job.seed, job.index, job.start + position) for position in range(len(answer))]
    for one, key in zip(answer, row_keys(rows), strict=True):
        total += _at(one, gumbel_numpy(key[None], vocab_size)[0], job.sampling)
    return total


def _at(one: Shown, noise: np.ndarray[Any, np.dtype[np.float32]], how: Sampling) -> Proof:
    shown = sorted({**one.top, one.token: one.logprob}.items(), key=lambda item: -item[1])
    least = shown[-1][1]
    admitted = shown
    if how.top_k:
        if len(one.top) <= how.top_k:
            return Proof()
        # one more than are admitted is shown: a tie at the border leaves the position open
        admitted, beyond = shown[: how.top_k], shown[how.top_k][1]
        if admitted[-1][1] - beyond < _SLACK:
            return Proof()
    sums = {token: logprob / how.temperature + float(noise[token]) for token, logprob in admitted}
    best = max(sums, key=lambda token: sums[token])
    if not how.top_k:
        hidden = noise.copy()
        hidden[[token for token, _ in shown]] = -np.inf
        if least / how.temperature + float(hidden.max()) > sums[best] - _SLACK:
            return Proof()
    if any(sums[best] - value < _SLACK for token, value in sums.items() if token != best):
        return Proof()
    if one.token != best:
        return Proof(decided=1, differing=1)
    weights = {token: math.exp(logprob / how.temperature) for token, logprob in admitted}
    # tokens that are not shown can only make this one less likely
    return Proof(decided=1, bits=-math.log2(weights[best] / sum(weights.values())))
