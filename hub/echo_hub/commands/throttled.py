"""`echo-hub demo --throttle`: nodes and learner of a speed to order, and what the model says of it.

On one machine all that works competes for its processors, so that its speed says nothing of a
swarm. Here groups and updates take given times, most of which is slept; the model's prediction for
these times is then compared with what was measured, in whichever regime was ordered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from echo_hub.planner.capacity import rule
from echo_hub.planner.schedule import predict
from echo_hub.planner.system import Node, Run
from echo_hub.publish.spread import median_last_s
from echo_hub.update_facts import UpdateFacts
from echo_p2p.errors import ConfigError

if TYPE_CHECKING:
    from echo_hub.config import RunConfig
    from echo_hub.service import Hub

GROUPS, GROUP_SIZE = 8, 8
_AT_FIRST = 4
"""Updates in which nodes still join, are audited and find their step: left out."""
_REGIMES = {"generation": (2.0, (3.0, 3.0, 3.0)), "learner": (2.0, (1.0, 1.0, 1.0))}


@dataclass(frozen=True)
class Throttle:
    """`train_s` of an update, and of each node what a group takes; it does `at_a_time` of them."""

    train_s: float
    group_s: Sequence[float]
    at_a_time: int = 2

    @classmethod
    def parse(cls, text: str) -> Throttle:
        """`generation`, `learner`, or `TRAIN_S:GROUP_S,GROUP_S,...`; ConfigError if it is none."""
        if text in _REGIMES:
            return cls(*_REGIMES[text])
        train, _, groups = text.partition(":")
        try:
            found = cls(float(train), tuple(map(float, groups.split(","))))
        except ValueError:
            found = cls(0.0, ())
        if not all(0.1 <= s <= 60 for s in (found.train_s, *found.group_s)) or not found.group_s:
            raise ConfigError(
                f"--throttle {text!r} is neither generation, learner, nor seconds of .1 to 60.",
                fix="Say seconds of an update, and of a group at each node: --throttle 3:4,4,2",
            )
        return found

    def program(self, number: int) -> Sequence[str]:
        """The node's module, with its arguments."""
        seconds = self.group_s[number % len(self.group_s)]
        answers = self.at_a_time * GROUP_SIZE
        return ("echo_node.throttle", f"{seconds:g}", f"{answers}")

    def nodes(self) -> list[Node]:
        """As the model sees them."""
        return [
            Node(f"{number}", self.at_a_time * GROUP_SIZE / seconds, groups=self.at_a_time)
            for number, seconds in enumerate(self.group_s)
        ]


def throttled(overrides: dict[str, dict[str, Any]], throttle: Throttle) -> None:
    """Small updates, so that many fit into a minute; nothing that takes the learner's time but
    them."""
    overrides["learner"] |= {"groups_per_update": GROUPS}
    overrides["sampling"] = {"group_size": GROUP_SIZE}
    overrides["audit"] = {"probation": 1}
    overrides["lease"] = {"groups_per_request": 2 * throttle.at_a_time, "newcomer_share": 1.0}
    overrides["evaluation"] = {"prompts": 8}


def measured(throttle: Throttle, hub: Hub) -> dict[str, Any]:
    """What the model predicts from the times ordered, and what was measured, for the summary."""
    return compared(
        throttle,
        hub.config,
        hub.loop.history,
        broadcast_s=median_last_s(hub.dissemination.spreads.all()) or 0.0,
        check_s=median(hub.front.check_times) if hub.front.check_times else 0.0,
    )


def compared(
    throttle: Throttle,
    config: RunConfig,
    history: Sequence[UpdateFacts],
    *,
    broadcast_s: float,
    check_s: float,
) -> dict[str, Any]:
    """Predicted and measured over all updates but the first ones; nothing if there were no more."""
    recent = history[_AT_FIRST:]
    if not recent:
        return {}
    train_s = fmean(one.train_s for one in recent)
    run = Run(
        groups=GROUPS,
        group_size=GROUP_SIZE,
        train_s=max(train_s, throttle.train_s),
        staleness=config.staleness,
        kappa=config.kappa,
        broadcast_s=broadcast_s,
        check_s=check_s,
        lease_s=config.lease.seconds,
        spread=0.0,
    )
    waited_s = sum(one.waited_s for one in recent)  # T_train has commit and publication in it
    found, closed = predict(run, throttle.nodes()), rule(run, throttle.nodes())
    return {
        "limit": closed.limit,
        "train_s": round(run.train_s, 3),
        "broadcast_s": round(run.broadcast_s or 0.0, 3),
        "check_s": round(run.check_s, 3),
        "predicted_idle": round(found.idle, 4),
        "predicted_idle_closed": round(1 - run.train_s / closed.seconds_per_update, 4),
        "measured_idle": round(waited_s / (waited_s + sum(one.train_s for one in recent)), 4),
        "rate_given": round(closed.rate, 3),
        "rate_needed": round(closed.rate_needed, 3),
    }
