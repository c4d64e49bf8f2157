"""How much does staleness cost, and which correction pays for it? Final reward at a forced lag.

Trains the packaged `addmix3` in this process: the learner's real policy and trainer, the node's
real torch engine, which loads the adapter that each update wrote, and seeded sampling. The batch of
the update that makes version v + 1 was sampled by version max(0, v - S): every rollout is as old as
the bound S allows (`--lags mixed`: each group's lag is drawn from 0..S, as in a real run). The same
seed gives every method the same initial adapter, prompts and sampling noise.

    python benchmarks/staleness.py [--methods default,clip] [--staleness 0,6,11] [--seeds 0,1,2]
        [--updates 48] [--lags full|mixed] [--out FILE.jsonl] [--table] [--quick]

A run is a line of FILE, written when it ends; runs that FILE holds already are not made again, so a
benchmark that was killed goes on with what it lacks. `--table` only prints what FILE holds.

Reward is sampled accuracy on held-out sums. `final`: mean of the last three evaluations (after
7/8, 15/16 and all of the updates). A run has *diverged* if its final reward lies below that of the
untrained policy or more than 10 points below the best that it had reached on the way.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from staleness_world import METHODS, Cell, World

STALENESS = (0, 1, 2, 4, 6, 8, 11, 16)
EVALUATED, GLANCED_AT = 512, 256
"""Held-out prompts in each of the last three evaluations, and in the earlier ones."""
FALL = 0.10
"""A run that ends so far below its best evaluation has diverged."""

CURVES = ("reward_mean", "clip_fraction", "kl", "ess", "grad_norm", "grad_cosine",
          "learning_rate")  # fmt: skip
"""What is kept of every update's metrics."""


def run(cell: Cell) -> dict[str, Any]:
    """Train one cell to its end; the record of it."""
    started = time.process_time()
    when = {cell.updates * i // 4 for i in range(4)} | _last_three(cell.updates)
    evaluations: list[tuple[int, float]] = []
    curves: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory(dir=_memory()) as folder:
        world = World(cell, Path(folder))
        for version in range(cell.updates + 1):
            if version in when:
                last = version in _last_three(cell.updates)
                evaluations.append((version, world.evaluate(EVALUATED if last else GLANCED_AT)))
            if version < cell.updates:
                for name, value in world.update().items():
                    curves[name].append(round(value, 5))
    values = [value for _, value in evaluations]
    final = statistics.mean(v for at, v in evaluations if at in _last_three(cell.updates))
    return {
        **cell._asdict(),
        "final": final,
        "best": max(values),
        "diverged": final < values[0] or final < max(values) - FALL,
        "evaluations": evaluations,
        "cpu_seconds": round(time.process_time() - started, 1),
        "curves": {name: curves[name] for name in CURVES if name in curves},
    }


def _last_three(updates: int) -> set[int]:
    return {updates * 7 // 8, updates * 15 // 16, updates}


def _memory() -> str | None:
    """Where files cost no disk: a checkpoint is synced to disk, which is not what is measured."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


# --- the file of results --------------------------------------------------------------------------


def load(path: Path) -> dict[Cell, dict[str, Any]]:
    """The runs that a file holds; a torn last line counts for nothing."""
    found = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        found[Cell(*(record[name] for name in Cell._fields))] = record
    return found


def table(records: Iterable[dict[str, Any]], updates: int, lags: str) -> str:
    """Markdown: a row a method, a column an S: mean final reward, spread, and who diverged."""
    cells: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    for record in records:
        if (record["updates"], record["lags"]) == (updates, lags):
            cells[record["method"], record["staleness"]].append(record)
    columns = sorted({staleness for _, staleness in cells})
    head = " | ".join(f"S = {s}" for s in columns)
    lines = [f"| method | {head} |", "|---" * (len(columns) + 1) + "|"]
    for method in sorted({method for method, _ in cells}):
        entries = [_entry(cells[method, s]) for s in columns]
        lines.append(f"| {method} | {' | '.join(entries)} |")
    return "\n".join(lines)


def _entry(records: list[dict[str, Any]]) -> str:
    if not records:
        return ""
    finals = [record["final"] for record in records]
    fallen = sum(record["diverged"] for record in records)
    spread = f" ({min(finals):.3f} to {max(finals):.3f})" if len(finals) > 1 else ""
    verdict = f", {fallen} of {len(finals)} diverged" if fallen else ""
    return f"{statistics.mean(finals):.3f}{spread}{verdict}"


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--staleness", type=_numbers, default=list(STALENESS))
    parser.add_argument("--seeds", type=_numbers, default=[0, 1, 2])
    parser.add_argument("--updates", type=int, default=48)
    parser.add_argument("--lags", choices=("full", "mixed"), default="full")
    parser.add_argument("--out", type=Path, default=Path("staleness.jsonl"))
    parser.add_argument("--also", action="append", default=[], metavar="NAME=JSON",
                        help="one more method: an object of [learner] settings")  # fmt: skip
    parser.add_argument("--table", action="store_true", help="print the table of --out and stop")
    parser.add_argument("--quick", action="store_true", help="two short runs, to see that it works")
    options = parser.parse_args()
    for name, _, settings in (text.partition("=") for text in options.also):
        METHODS[name] = json.loads(settings)
    if options.quick:
        options.methods, options.staleness, options.seeds = "clip", [0, 4], [0]
        options.updates = 8
    return options


def main() -> None:
    options = _options()
    torch.set_num_threads(1)
    done = load(options.out)
    wanted = [
        Cell(method, staleness, seed, options.updates, options.lags)
        for seed in options.seeds
        for staleness in options.staleness
        for method in options.methods.split(",")
    ]
    for cell in [] if options.table else wanted:
        if cell in done:
            continue
        done[cell] = record = run(cell)
        with options.out.open("a") as file:
            file.write(json.dumps(record) + "\n")
        curve = " ".join(f"{value:.2f}" for _, value in record["evaluations"])
        verdict = "diverged" if record["diverged"] else "stable"
        print(*cell, f"final {record['final']:.3f}", verdict, f"({curve})", flush=True)
    print(table(done.values(), options.updates, options.lags))


if __name__ == "__main__":
    main()
