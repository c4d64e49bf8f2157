"""How much does staleness cost, and which correction pays for it? Final reward at a forced lag.

Trains the packaged `addmix3` in this process: the learner's real policy and trainer, the node's
real torch engine, which loads the adapter that each update wrote, and seeded sampling. The batch of
the update that makes version v + 1 was sampled by version max(0, v - S): every rollout is as old as
the bound S allows (`--lags mixed`: each group's lag is drawn from 0..S, as in a real run). The same
seed gives every method the same initial adapter, prompts and sampling noise.

    python benchmarks/staleness.py [--methods clip,default] [--staleness 0,6,11] [--seeds 0,1,2]
        [--updates 48] [--lags full|mixed] [--out FILE.jsonl] [--quick]

A run is a line of FILE, written when it ends; runs that FILE holds already are not made again, so a
benchmark that was killed goes on with what it lacks. `--table` only prints what FILE holds.

Reward is sampled accuracy on held-out sums. `final`: mean of the last three evaluations (after
7/8, 15/16 and all of the updates). A run has *diverged* if its final reward lies below that of the
untrained policy or more than 10 points below the best that it had reached on the way.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from echo_hub.config import RunConfig
from echo_hub.learner.messages import TrainGroup, TrainRollout
from echo_hub.learner.policy import Policy
from echo_hub.learner.trainer import Trainer
from echo_hub.models import addmix3_path
from echo_hub.tasks.addmix import AddMix
from echo_hub.tasks.base import Prompt, Split
from echo_hub.tokens import Tokenizer
from echo_node.engines.base import Job
from echo_node.engines.torch import TorchEngine
from echo_p2p.wire import Sampling

STALENESS = (0, 1, 2, 4, 6, 8, 11, 16)
GROUPS, GROUP_SIZE, LIMIT = 16, 8, 34
EVALUATED, GLANCED_AT = 512, 256
"""Held-out prompts in each of the last three evaluations, and in the earlier ones."""
FALL = 0.10
"""A run that ends so far below its best evaluation has diverged."""

CURVES = ("reward_mean", "clip_fraction", "kl", "ess", "grad_norm", "grad_cosine",
          "learning_rate")  # fmt: skip
"""What is kept of every update's metrics."""

METHODS: dict[str, dict[str, Any]] = {
    "clip": {},
}
"""What each method sets in `[learner]`, over a learning rate of 1e-3."""


_UNTRAINED: dict[tuple[int, ...], list[TrainGroup]] = {}


class Cell(NamedTuple):
    """One run, by what decides its result."""

    method: str
    staleness: int
    seed: int
    updates: int
    lags: str


class World:
    """A policy under training, and the engine that samples from its versions."""

    def __init__(self, cell: Cell, folder: Path) -> None:
        self.cell, self.folder = cell, folder
        self.config = _config(cell)
        self.tokenizer = Tokenizer.load(addmix3_path())
        self.task = AddMix(cell.seed)
        policy = Policy.load(addmix3_path(), self.config.learner, dtype="float32", seed=cell.seed)
        self.trainer = Trainer(policy, self.config)
        self.trainer.save(self._checkpoint(0))
        self.engine = TorchEngine(max_sequences=EVALUATED, device="cpu")
        self.engine.load(addmix3_path(), "float32")
        self.sampling = Sampling(
            temperature=1.0, max_new_tokens=LIMIT, stop=tuple(self.tokenizer.eos)
        )

    def _checkpoint(self, version: int) -> Path:
        return self.folder / f"v{version}"

    def sample(
        self, version: int, prompts: Sequence[Prompt], seeds: Sequence[int], count: int
    ) -> list[TrainGroup]:
        """`count` scored answers to each prompt by one version, as groups."""
        self.engine.activate(version, self._checkpoint(version) / "adapter")
        encoded = [self.tokenizer.encode(prompt.text, "raw") for prompt in prompts]
        jobs = [
            Job(prompt=tokens, seed=seed, index=index, sampling=self.sampling)
            for tokens, seed in zip(encoded, seeds, strict=True)
            for index in range(count)
        ]
        done = self.engine.generate(jobs)
        scored = [
            TrainRollout(
                answer.tokens,
                answer.logprobs,
                self.task.reward(prompts[i // count], self.tokenizer.decode(answer.tokens)),
            )
            for i, answer in enumerate(done)
        ]
        return [
            TrainGroup(version, tokens, scored[i * count : (i + 1) * count])
            for i, tokens in enumerate(encoded)
        ]

    def evaluate(self, count: int) -> float:
        """Sampled accuracy of the newest version; prompts and noise are the same every time."""
        prompts = self._prompts("heldout", range(count))
        groups = self.sample(self.trainer.version, prompts, range(count), 1)
        return statistics.mean(group.rollouts[0].reward for group in groups)

    def update(self) -> dict[str, float]:
        """One update on a batch of the lag that the cell forces."""
        version = self.trainer.version
        rng = random.Random(f"{self.cell.seed}/{version}")
        lags = [
            self.cell.staleness if self.cell.lags == "full" else rng.randint(0, self.cell.staleness)
            for _ in range(GROUPS)
        ]
        prompts = self._prompts("train", range(version * GROUPS, (version + 1) * GROUPS))
        by_version: dict[int, list[Prompt]] = defaultdict(list)
        for lag, prompt in zip(lags, prompts, strict=True):
            by_version[max(0, version - lag)].append(prompt)
        groups: list[TrainGroup] = []
        for sampler, asked in sorted(by_version.items()):
            seeds = [rng.randrange(2**63) for _ in asked]
            groups += self._once(sampler, asked, seeds)
        return self.trainer.train(groups, self._checkpoint(version + 1))

    def _once(self, version: int, prompts: list[Prompt], seeds: list[int]) -> list[TrainGroup]:
        """`sample`; what version 0 answered is remembered, which is the same for every method."""
        if version:
            return self.sample(version, prompts, seeds, GROUP_SIZE)
        key = tuple(seeds)
        if key not in _UNTRAINED:
            _UNTRAINED[key] = self.sample(0, prompts, seeds, GROUP_SIZE)
        return _UNTRAINED[key]

    def _prompts(self, split: Split, indices: Iterable[int]) -> list[Prompt]:
        return [self.task.prompt(split, index) for index in indices]


def _config(cell: Cell) -> RunConfig:
    learner = {
        "groups_per_update": GROUPS, "learning_rate": 1e-3, "microbatch_tokens": 16384,
        "staleness": cell.staleness, **METHODS[cell.method],
    }  # fmt: skip
    return RunConfig.model_validate(
        {
            "run": {"id": "staleness", "seed": cell.seed},
            "sampling": {"max_new_tokens": LIMIT, "group_size": GROUP_SIZE},
            "learner": learner,
        }
    )


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
