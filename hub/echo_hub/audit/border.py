"""Margins where top-k or top-p leave tokens out. Pure.

Numerical noise may move a token across the border of what is admitted, and then an honest token
looks as if it could not have been drawn at all. So the margin is here the least m such that the
claimed token can win when every difference of two scaled logits is off by at most m: the most
generous border must admit it, and no token that even the narrowest border admits may lie more than
m above it. (If one token is off by m against all others, the odds of any probability above it
change by e^m.) Without a border that is the plain margin.
"""

from __future__ import annotations

import torch

from echo_p2p.sampling import weights

_LEAST, _GREATEST = 1e-6, 100.0
_STEPS = 24


def border_margins(
    scaled: torch.Tensor, noise: torch.Tensor, tokens: torch.Tensor, *, top_k: int, top_p: float
) -> torch.Tensor:
    """Margins [R] of claimed tokens that are not the drawn ones.

    Args:
        scaled: logits / temperature of every token, float32 [R, vocabulary].
        noise: the Gumbel noise of every token, [R, vocabulary].
    """
    rows = _Rows(scaled, noise, tokens, top_k, top_p)
    low = torch.full_like(scaled[:, :1], _LEAST)
    high = torch.full_like(low, _GREATEST)
    for _ in range(_STEPS):  # whether a token is excused by m is monotone in m
        middle = (low * high).sqrt()
        excused = rows.excused(middle)
        low, high = torch.where(excused, low, middle), torch.where(excused, middle, high)
    return high[:, 0]


class _Rows:
    """Rows sorted by their logits, with the probability that lies above each place."""

    def __init__(
        self,
        scaled: torch.Tensor,
        noise: torch.Tensor,
        tokens: torch.Tensor,
        top_k: int,
        top_p: float,
    ) -> None:
        self._top_p = top_p
        self._size = scaled.shape[-1]
        self._top_k = top_k if 0 < top_k < self._size else self._size
        order = scaled.argsort(-1, descending=True)
        self._falling = scaled.gather(-1, order)
        self._rising = -self._falling
        self._mass = weights(self._falling).double()
        self._above = torch.nn.functional.pad(self._mass.cumsum(-1), (1, 0))
        sums = (scaled + noise).gather(-1, order)
        # best[n]: the greatest sum among the n likeliest
        self._best = torch.nn.functional.pad(sums.cummax(-1).values, (1, 0), value=float("-inf"))
        self._own = scaled.gather(-1, tokens[:, None])
        self._sum = (scaled + noise).gather(-1, tokens[:, None])

    def excused(self, m: torch.Tensor) -> torch.Tensor:
        """Whether noise of m can make each row's claimed token the drawn one: bool [R, 1]."""
        return self._possible(m) & (self._best.gather(-1, self._certain(m)) - self._sum <= m)

    def _possible(self, m: torch.Tensor) -> torch.Tensor:
        above = self._greater(self._own + m)
        mass = self._above.gather(-1, above)
        return (above < self._top_k) & self._light(mass, self._total(-m), torch.exp(-m))

    def _certain(self, m: torch.Tensor) -> torch.Tensor:
        """How many of the likeliest tokens every border admits: int64 [R, 1], by bisection."""
        total = self._total(m)
        low, high = torch.zeros_like(m, dtype=torch.int64), torch.full_like(m, self._size).long()
        for _ in range(self._size.bit_length()):
            middle = (low + high + 1) // 2
            last = (middle - 1).clamp(min=0)
            others = (self._greater(self._falling.gather(-1, last) - m) - 1).clamp(min=0)
            mass = self._above.gather(-1, others + 1) - self._mass.gather(-1, last)
            sure = (others < self._top_k) & self._light(mass, total, torch.exp(m))
            low = torch.where(sure, middle, low)
            high = torch.where(sure, high, middle - 1).maximum(low)
        return low

    def _greater(self, value: torch.Tensor) -> torch.Tensor:
        """How many tokens have a greater logit than `value`: [R, 1]."""
        return torch.searchsorted(self._rising, -value)

    def _total(self, shift: torch.Tensor) -> torch.Tensor:
        """The probability that top-k leaves, if its border is `shift` higher."""
        border = self._falling[:, self._top_k - 1 : self._top_k] + shift
        inside = torch.searchsorted(self._rising, -border, right=True).clamp(min=1)
        return self._above.gather(-1, inside)

    def _light(self, mass: torch.Tensor, total: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        """Whether the share of `mass`, its odds multiplied by `factor`, is below top-p."""
        if self._top_p >= 1.0:
            return torch.ones_like(mass, dtype=torch.bool)
        return mass * factor * (1.0 - self._top_p) < self._top_p * (total - mass).clamp(min=0)
