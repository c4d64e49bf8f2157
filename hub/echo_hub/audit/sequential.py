"""The test on a node: every audited token counts, until the node is condemned or its work ends.

A cheat whose groups each look almost honest (a quantised model, a temperature a little off) shows
in the sum. Tokens are judged by tail counts: how many margins, and how many differences of
log-probability, exceed each of `EDGES`. Let `chance` be the probability that an independent draw at
a token would have given another one (1 - sum of p^2 of the policy there, its collision entropy):
where the policy is sure, it is 0. Numerical noise that shifts sums by d swaps the two best with a
probability of about d * chance (the gap of a Gumbel race has density `chance` at 0), so an honest
margin is the less likely the larger it is and the surer the policy. `Noise` states, for each edge,

    P(margin > edge | past)     <= margin_rate * chance      and
    P(difference > edge | past) <= difference_rate,

and is measured by `echo-hub calibrate`. For an edge and a rate q of a cheat, with n tokens above
the edge and exposure H (sum of chances, or number of tokens), the Poisson likelihood ratio

    E = (q / rate)^n * exp(-(q - rate) * H),      q > rate,

has expectation at most 1 in honest work: E[(q/rate)^[above]] <= 1 + (q - rate) * chance. That is
Wald's sequential probability ratio for each pair (edge, q), and a bet in the sense of Waudby-Smith
and Ramdas ("Estimating means of bounded random variables by betting", JRSS B 2024): its wealth
multiplies from group to group. The wealth of all `BETS` is averaged: none has to be the right one.

A node may be honest for months and then cheat, and must not live on wealth that its bets lost: each
bet is given new capital as time goes by, 1 a day of work, as in the e-detectors of Shin, Ramdas and
Rinaldo (2023). A node begins with capital 1. The average wealth minus all capital given is a
supermartingale in honest work, so a node that has worked n >= 1 days is condemned with probability
at most (1 + n) / LIMIT <= n / 10,000 (Doob): **one false ban in 10,000 honest node-days**, where a
day is `TOKENS_PER_DAY` audited tokens. The margin as the statistic is from Token-DiFR (arXiv
2511.20621).

Pure. Invariants: a condemned node stays condemned; wealth is finite.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

from echo_hub.learner.messages import Audited
from echo_p2p.errors import LedgerError

EDGES = (1e-4, 1e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0)
"""Where margins and differences of log-probability are counted, in nats."""

TOKENS_PER_DAY = 10_000_000
"""Audited tokens of one node-day, for which the false-ban rate is stated."""

LIMIT = 20_000.0
"""Average wealth at which a node is condemned."""

_MARGIN_CHEATS = (3e-3, 3e-2, 0.3)
_DIFFERENCE_CHEATS = (0.03, 0.3)
_MOST = 1e300


@dataclass(frozen=True)
class Noise:
    """Upper bounds of what honest work shows above each of `EDGES`; rates in (0, 1]."""

    margin_rates: tuple[float, ...]
    difference_rates: tuple[float, ...]

    def __post_init__(self) -> None:
        for rates in (self.margin_rates, self.difference_rates):
            if len(rates) != len(EDGES) or not all(0 < rate <= 1 for rate in rates):
                raise ValueError(f"{len(EDGES)} rates in (0, 1] are needed, not {rates}")


SMALL_NOISE = 1e-4
"""Where no logit is off by more, no two sums swap that are further apart than twice this."""

FLOAT32 = Noise(
    margin_rates=(2 * SMALL_NOISE,) * len(EDGES), difference_rates=(1e-3,) + (5e-5,) * 6
)
"""Nodes and auditor in float32, where noise is small: of 190,000 honest tokens of addmix3 none was
off by more than 3e-5, so a rate of 5e-5 is twice the upper 99 % bound of none in so many."""


@dataclass(frozen=True)
class _Bet:
    """One bet: the rate of a cheat above one edge."""

    edge: int
    rate: float
    margins: bool

    def log_growth(self, group: Audited, noise: Noise) -> float:
        rates = noise.margin_rates if self.margins else noise.difference_rates
        honest = rates[self.edge]
        if self.rate <= 2 * honest:  # noise drowns what this bet looks for
            return 0.0
        above = (group.margins if self.margins else group.differences)[self.edge]
        exposure = group.chance if self.margins else float(group.tokens)
        return above * math.log(self.rate / honest) - (self.rate - honest) * exposure


BETS = tuple(
    _Bet(edge, rate, margins)
    for margins, cheats in ((True, _MARGIN_CHEATS), (False, _DIFFERENCE_CHEATS))
    for rate in cheats
    for edge in range(len(EDGES))
)


@dataclass(frozen=True)
class NodeEvidence:
    """All that a node's audited groups have shown so far.

    `margins` and `differences` are tail counts as in `Audited`; `bits` is the sampling entropy of
    its tokens: what was there to cheat with.
    """

    tokens: int = 0
    chance: float = 0.0
    bits: float = 0.0
    margins: tuple[int, ...] = (0,) * len(EDGES)
    differences: tuple[int, ...] = (0,) * len(EDGES)
    wealth: tuple[float, ...] = (1.0,) * len(BETS)
    condemned: bool = False

    def update(self, group: Audited, noise: Noise = FLOAT32) -> NodeEvidence:
        """The evidence with one more audited group. One without counts changes nothing."""
        if not group.margins:
            return self
        capital = group.tokens / TOKENS_PER_DAY
        wealth = tuple(
            min(_MOST, _grown(old, bet.log_growth(group, noise)) + capital)
            for old, bet in zip(self.wealth, BETS, strict=True)
        )
        return replace(
            self,
            tokens=self.tokens + group.tokens,
            chance=self.chance + group.chance,
            bits=self.bits + group.bits,
            margins=_added(self.margins, group.margins),
            differences=_added(self.differences, group.differences),
            wealth=wealth,
            condemned=self.condemned or sum(wealth) / len(wealth) >= LIMIT,
        )

    @property
    def suspicion(self) -> float:
        """From 0, nothing, to 1, condemned: the logarithm of the average wealth, scaled."""
        return min(1.0, max(0.0, math.log(sum(self.wealth) / len(BETS)) / math.log(LIMIT)))

    def to_json(self) -> str:
        """What the ledger keeps."""
        return json.dumps(asdict(self))

    @classmethod
    @lru_cache(maxsize=20_000)  # a page of nodes reads what is known of a hundred, again and again
    def from_json(cls, text: str) -> NodeEvidence:
        """From `to_json`; LedgerError if it is something else."""
        try:
            fields: dict[str, Any] = json.loads(text)
            lists = {name: tuple(fields[name]) for name in ("margins", "differences", "wealth")}
            evidence = cls(**(fields | lists))
        except (ValueError, TypeError, KeyError) as error:
            raise LedgerError(f"a node's evidence cannot be read: {error!r}.") from error
        lengths = (len(evidence.margins), len(evidence.differences), len(evidence.wealth))
        if lengths != (len(EDGES), len(EDGES), len(BETS)):
            raise LedgerError("a node's evidence was written by another version of this program.")
        return evidence


def _grown(wealth: float, log_growth: float) -> float:
    if wealth <= 0.0:
        return 0.0
    return math.exp(min(math.log(_MOST), math.log(wealth) + log_growth))


def _added(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    return tuple(x + y for x, y in zip(a, b, strict=True))
