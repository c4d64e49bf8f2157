"""How far is the guard from stopping runs that are well? What it would say of recorded updates.

    python benchmarks/staleness.py --out FILE.jsonl    # or any such file
    python benchmarks/guard.py FILE.jsonl

Each run's updates are judged in order, with the default bounds; an update that would be refused is
counted and remembered all the same, since the run went on from it. For each bound: the largest
value seen in a run, and how many times larger it may be. Rewards are taken as right or wrong, and
groups as independent prompts whose answers agree as much as they can, which makes falls look least
like chance.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from echo_hub.config import GuardSection
from echo_hub.learner.guard import Measures, Memory, Reward, judge

BOUNDS = GuardSection()
GROUPS = 16


@dataclass
class Seen:
    """The largest values of a run."""

    spike: float = 0.0
    kl: float = 0.0
    fall: float = 0.0
    refused: int = 0


def measures_of(curves: dict[str, list[float]]) -> Iterator[Measures]:
    for mean, norm, kl in zip(
        curves["reward_mean"], curves["grad_norm"], curves["kl"], strict=True
    ):
        variance = mean * (1 - mean)
        yield Measures(0.0, norm, kl, None, Reward(mean, math.sqrt(variance / GROUPS), variance))


def fall_of(rewards: Sequence[Reward], width: int) -> float:
    """The fall of the last window from the best before it, in deviations of a rollout's reward."""
    if len(rewards) < 2 * width:
        return 0.0
    means = [fmean(r.mean for r in rewards[i : i + width]) for i in range(len(rewards) - width + 1)]
    best = max(range(len(means) - width), key=lambda i: means[i])
    spreads = [fmean(r.variance for r in rewards[i : i + width]) for i in (best, len(means) - 1)]
    return (means[best] - means[-1]) / math.sqrt(fmean(spreads) or 1e-12)


def replay(curves: dict[str, list[float]]) -> Seen:
    memory, seen = Memory(), Seen()
    for version, measures in enumerate(measures_of(curves), 1):
        seen.refused += judge(memory, measures, BOUNDS) is not None
        if len(memory.norms) >= BOUNDS.gradient_warmup:
            seen.spike = max(seen.spike, measures.grad_norm / median(memory.norms))
        seen.kl = max(seen.kl, measures.policy_kl)
        memory = memory.after(version, measures, BOUNDS)
        seen.fall = max(seen.fall, fall_of([r for _, r in memory.rewards], BOUNDS.reward_window))
    return seen


def show(name: str, runs: list[dict[str, Any]]) -> None:
    seen = [replay(run["curves"]) for run in runs]
    updates = sum(len(run["curves"]["kl"]) for run in runs)
    spike, kl = max(one.spike for one in seen), max(one.kl for one in seen)
    fall = max(one.fall for one in seen)
    print(
        f"{name:32} {len(runs):4} {updates:7} {spike:8.1f} {kl:8.3f} {fall:8.2f} "
        f"{sum(one.refused for one in seen):8}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    runs = [json.loads(line) for line in parser.parse_args().file.read_text().splitlines()]
    print(f"{'':32} runs updates    norm       kl     fall  refused")
    print(
        f"{'allowed':45} {BOUNDS.gradient_factor:8.1f} {BOUNDS.policy_kl:8.3f} "
        f"{BOUNDS.reward_drop:8.2f}"
    )
    for diverged in (False, True):
        for staleness in sorted({run["staleness"] for run in runs}):
            some = [
                run for run in runs if run["staleness"] == staleness and run["diverged"] is diverged
            ]
            if some:
                show(f"S = {staleness}, {'diverged' if diverged else 'stable'}", some)


if __name__ == "__main__":
    main()
