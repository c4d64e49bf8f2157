"""When to ask the operator's own tools for more rented nodes, or for fewer. Pure.

Promises: `scale_up` only while the rates of all nodes present have been too low for `after_s` (a
latency that is too long, no node mends); `scale_down` names only rented nodes that have been on
standby for `idle_s` in a row while nothing is missing; no two wishes within `every_s`, whatever
happens and whichever way the clock steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from echo_hub.planner.activation import Decision
from echo_hub.planner.estimators import Elapsed

MOST_NAMED = 100
"""Nodes in one wish."""
_LONGEST_LOOK_S = 600.0  # between two looks; more is a step of the clock


@dataclass(frozen=True)
class Wish:
    """What is asked for: so many `nodes` more, or these (`keys`) to be stopped."""

    wish: Literal["scale_up", "scale_down"]
    sentence: str
    nodes: int
    rate_missing: float = 0.0
    """Rollouts a second."""
    keys: tuple[str, ...] = ()


class Scaling:
    """Looks at each decision; `look` returns a wish at most every `every_s` seconds."""

    def __init__(self, *, after_s: float, idle_s: float, every_s: float) -> None:
        self._after_s, self._idle_s, self._every_s = after_s, idle_s, every_s
        self._elapsed = Elapsed(_LONGEST_LOOK_S)
        self._clock, self._wished_at = 0.0, -math.inf
        self._missing_s = 0.0
        self._idle: dict[str, float] = {}

    def look(self, decision: Decision, idle: Iterable[str], now: float) -> Wish | None:
        """What to wish for now, if anything; `idle` are the rented nodes on standby."""
        passed = self._elapsed.since(now)
        self._clock += passed
        short = decision.missing == "rate"
        self._missing_s = self._missing_s + passed if short else 0.0
        self._idle = {key: self._idle.get(key, -passed) + passed for key in idle}
        if self._clock - self._wished_at < self._every_s:
            return None
        wish = self._more(decision) if short else self._fewer(decision)
        if wish is not None:
            self._wished_at = self._clock
        return wish

    def _more(self, decision: Decision) -> Wish | None:
        if self._missing_s < self._after_s:
            return None
        missing = max(decision.wanted, decision.needed) - decision.rate
        nodes = more_nodes(decision)
        return Wish(
            "scale_up",
            f"{decision.rate:.3g} rollouts/s are generated and {decision.needed:.3g} are needed: "
            f"about {nodes} more node{'s' if nodes > 1 else ''}.",
            nodes,
            rate_missing=missing,
        )

    def _fewer(self, decision: Decision) -> Wish | None:
        if decision.missing or decision.on_trial:
            return None
        idle = sorted(key for key, seconds in self._idle.items() if seconds >= self._idle_s)
        if not idle:
            return None
        named = tuple(idle[:MOST_NAMED])
        return Wish(
            "scale_down",
            f"{len(named)} rented node{'s have' if len(named) > 1 else ' has'} been on standby for "
            f"{self._idle_s / 60:.3g} minutes and cost money.",
            len(named),
            keys=named,
        )


def more_nodes(decision: Decision) -> int:
    """Nodes like those at work that would make up for what is missing; 1 if no rate is known."""
    measured = len(decision.active) - decision.on_trial
    missing = max(decision.wanted, decision.needed) - decision.rate
    if measured <= 0 or decision.rate <= 0 or missing <= 0:
        return 1
    return max(1, math.ceil(missing * measured / decision.rate - 1e-9))
