"""Held-out success before and after GRPO, for each built-in task on its small base; and the rates.

A run makes rollouts with the torch engine, scores them with the task, steps with the trainer and
gives the engine the new adapter, all in one process (`tasks_world`): what a hub and nodes do, less
the network, at a lag of 0. Success is a reward of 1 on held-out instances, which neither the base
nor the run has seen, one sampled answer each, at temperature 1. The bases are made if they are not
there (`echo_hub.models.make_base`, and the packaged addmix3).

    python benchmarks/tasks.py [--tasks sokoban wordle ...] [--seeds 0 1 2] [--quick]
                               [--bases FOLDER] [--out FILE.jsonl]
    python benchmarks/tasks.py --rates        instances a second of CPU time, for every level
    python benchmarks/tasks.py --table FILE.jsonl

`--out` is added to, a line a run; runs that it has already are not made again. `--quick` is one
seed of each task, with fewer updates and prompts: to see that all of it works.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any, cast

os.environ.setdefault("OMP_NUM_THREADS", "1")

from echo_hub.commands.presets import Model, preset
from echo_hub.config import RunConfig
from echo_hub.models import addmix3_path
from echo_hub.models.make_base import make_base
from echo_hub.tasks.base import Split

SPLITS: tuple[Split, Split] = ("train", "heldout")
TASKS = ("sokoban", "knights-knaves", "mathematics", "wordle", "countdown", "addmix3")
GROUPS, GROUP_SIZE, UPDATES, PROMPTS = 16, 8, 32, 256
RATE = 1e-3


def run(task: str, base: Path, seed: int, *, updates: int, prompts: int) -> dict[str, Any]:
    """One run; what came of it."""
    from tasks_world import a_world

    config = configured(task, base, seed)
    with a_world(config) as world:
        cpu, wall = time.process_time(), time.perf_counter()
        before = world.evaluate(prompts)
        rewards = []
        for number in range(1, updates + 1):
            rewards.append(world.update()["reward_mean"])
            print(f"{task} seed {seed}: update {number}, reward {rewards[-1]:.3f}", file=sys.stderr)
        trained = world.rollouts
        after = world.evaluate(prompts)
        return {
            "task": task,
            "seed": seed,
            "updates": updates,
            "prompts": prompts,
            "before": round(before, 4),
            "after": round(after, 4),
            "rollouts": trained,
            "tokens": world.sampled_tokens,
            "cpu_minutes": round((time.process_time() - cpu) / 60, 2),
            "wall_minutes": round((time.perf_counter() - wall) / 60, 2),
            "rewards": [round(reward, 3) for reward in rewards],
        }


def configured(task: str, base: Path, seed: int) -> RunConfig:
    """The preset's configuration, at a lag of 0 and with small updates."""
    return preset(
        cast(Model, task),
        run_id="tasks",
        overrides={
            "base": {"path": str(base)},
            "run": {"id": "tasks", "seed": seed, "mode": "sequential"},
            "learner": {"groups_per_update": GROUPS, "threads": 1, "learning_rate": RATE},
            "sampling": {"group_size": GROUP_SIZE},
        },
    )


def base_of(task: str, bases: Path) -> Path:
    """The snapshot of a task's base, made now if it is not there."""
    if task == "addmix3":
        return addmix3_path()
    if not (bases / task).exists():
        bases.mkdir(parents=True, exist_ok=True)
        started = time.process_time()
        make_base(task, bases / task)
        print(f"base {task}: {time.process_time() - started:.0f} s of CPU", file=sys.stderr)
    return bases / task


def rates() -> None:
    """Instances a second of CPU time, training and held out."""
    from tasks_world import rate

    from echo_hub.tasks import make_task

    levels = {
        "sokoban": 5, "knights-knaves": 7, "mathematics": 3, "wordle": 3, "countdown": 5,
    }  # fmt: skip
    print("| task | level | instances a second, training | held out |\n|---|---|---|---|")
    cases: list[tuple[str, dict[str, Any]]] = [("addmix3", {})]
    cases += [(name, {"level": n}) for name, most in levels.items() for n in range(1, most + 1)]
    cases += [("mathematics", {"style": "competition", "level": n}) for n in (1, 2, 3)]
    for name, options in cases:
        task = make_task(name, options, 1)
        speeds = [rate(task, split, 400) for split in SPLITS]
        told = ", ".join(str(value) for value in options.values()) or "-"
        print(f"| {name} | {told} | {speeds[0]:,.0f} | {speeds[1]:,.0f} |", flush=True)


def table(lines: list[dict[str, Any]]) -> None:
    """What docs/performance.md shows."""
    by_task: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in lines:
        by_task[line["task"]].append(line)
    print(
        "| task | before, by seed | after | rise | rollouts | CPU min |\n|---|---|---|---|---|---|"
    )
    for task in TASKS:
        runs = sorted(by_task.get(task, []), key=lambda one: one["seed"])
        if not runs:
            continue
        before, after = ([one[key] for one in runs] for key in ("before", "after"))
        rise = statistics.fmean(after) - statistics.fmean(before)
        cells = [" ".join(f"{value:.2f}"[1:] for value in values) for values in (before, after)]
        minutes = statistics.fmean(one["cpu_minutes"] for one in runs)
        print(
            f"| {task} | {cells[0]} | {cells[1]} | +{100 * rise:.0f} | {runs[0]['rollouts']:,}"
            f" | {minutes:.1f} |"
        )


def read(path: Path | None) -> list[dict[str, Any]]:
    if path is None or not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--updates", type=int, default=UPDATES)
    parser.add_argument("--quick", action="store_true", help="one seed, 4 updates, 32 prompts")
    parser.add_argument("--bases", type=Path, default=Path("build/bases"))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rates", action="store_true")
    parser.add_argument("--table", type=Path)
    args = parser.parse_args()
    if args.rates:
        rates()
        return
    if args.table:
        table(read(args.table))
        return
    seeds, updates, prompts = args.seeds, args.updates, PROMPTS
    if args.quick:
        seeds, updates, prompts = seeds[:1], 4, 32
    lines = read(args.out)
    done = {(one["task"], one["seed"]) for one in lines}
    for seed in seeds:  # every task with one seed first
        for task in args.tasks:
            if (task, seed) in done:
                continue
            base = base_of(task, args.bases)
            lines.append(run(task, base, seed, updates=updates, prompts=prompts))
            print(json.dumps({k: v for k, v in lines[-1].items() if k != "rewards"}), flush=True)
            if args.out is not None:
                with args.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(lines[-1]) + "\n")
    table(lines)


if __name__ == "__main__":
    main()
