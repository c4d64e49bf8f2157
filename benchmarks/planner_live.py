"""The checks of `benchmarks/planner.py` that run the real thing: hub and nodes as programs.

Groups and updates of `live` take given times, most of which is slept, so that the processors of one
machine are not the hidden limit.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

Facts = dict[str, float | int | str]

LIVE = (
    ("2:3,3,3", 2),
    ("2:1,1,1", 2),
    ("2:2,2,2", 2),
    ("2:1.4,1.4,4", 2),
    ("2:1,1,1", 0),
    ("1.5:2,1,3", 4),
)
"""What is ordered of learner and nodes, and S."""
SWEPT = (0, 1, 2, 4, 8)


def demo(*arguments: str) -> dict[str, Any]:
    """The summary of one `echo-hub demo`."""
    done = subprocess.run(
        [sys.executable, "-m", "echo_hub.cli", "demo", "--json", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        raise SystemExit(f"the demo failed: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def check_live(only: Sequence[int]) -> Facts:
    """Each setting's predicted and measured idle fraction, and how many points they differ by."""
    facts: Facts = {}
    errors = []
    for number in only or range(len(LIVE)):
        throttle, staleness = LIVE[number]
        told = demo("--throttle", throttle, "--staleness", f"{staleness}", "--updates", "18")
        error = 100 * (told["predicted_idle"] - told["measured_idle"])
        errors.append(abs(error))
        facts[f"{throttle} S={staleness}"] = (
            f"predicted {told['predicted_idle']:.3f}, measured {told['measured_idle']:.3f}, "
            f"off by {error:+.1f} points, limit {told['limit']}, T_train {told['train_s']:.2f}, "
            f"T_bcast {told['broadcast_s']:.2f}, checks {told['check_s']:.2f} s"
        )
    return facts | {"worst": max(errors), "within_5_points": sum(one <= 5 for one in errors)}


def check_staleness(only: Sequence[int]) -> Facts:
    """The packaged demo by S: reward after 30 updates, and the learner's time."""
    facts: Facts = {}
    for number in only or range(len(SWEPT)):
        told = demo("--staleness", f"{SWEPT[number]}")
        stale = told["rollouts_rejected"].get("stale", 0)
        facts[f"S = {SWEPT[number]}"] = (
            f"reward {told['reward_before']:.3f} -> {told['reward_after']:.3f}, learner idle "
            f"{told['learner_idle_fraction']:.3f}, stale {stale}, "
            f"max lag {told['max_lag']}, {told['wall_s']:.0f} s"
        )
    return facts
