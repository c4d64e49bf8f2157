"""Is it worth leaving out groups whose answers are all worth the same? Reward for rollouts spent.

Trains the packaged `addmix3` in this process as `staleness.py` does, at lag 0, twice for each seed:
every update on the next 16 groups, or on the next 16 that have an advantage (`drop_zero_advantage`;
the others are thrown away, and were paid for). Both spend the same rollouts. Printed: updates made,
and sampled accuracy on held-out sums after each quarter of the rollouts.

    python benchmarks/zero_advantage.py [--rollouts 6400] [--seeds 0,1]
"""

from __future__ import annotations

import argparse
import random
import tempfile
from pathlib import Path

import torch
from staleness import EVALUATED, GROUP_SIZE, GROUPS, METHODS, Cell, World

from echo_hub.learner.messages import TrainGroup
from echo_hub.learner.penalties import all_alike

LEARNING_RATE = 5e-4
QUARTERS = 4


def run(seed: int, rollouts: int, *, drop: bool) -> tuple[int, list[float]]:
    """Updates made, and the accuracy after each quarter of the rollouts."""
    METHODS["zero_advantage"] = {"learning_rate": LEARNING_RATE}
    rng, spent, curve = random.Random(seed), 0, list[float]()
    with tempfile.TemporaryDirectory() as folder:
        world = World(Cell("zero_advantage", 0, seed, 0, "full"), Path(folder))
        batch: list[TrainGroup] = []
        while spent < rollouts:
            wanted = GROUPS - len(batch)
            number = spent // GROUP_SIZE
            prompts = [world.task.prompt("train", number + i) for i in range(wanted)]
            seeds = [rng.randrange(2**63) for _ in prompts]
            asked = world.sample(world.trainer.version, prompts, seeds, GROUP_SIZE)
            spent += GROUP_SIZE * wanted
            batch += [group for group in asked if not (drop and _blank(group))]
            if len(batch) == GROUPS:
                world.trainer.train(batch, Path(folder) / f"v{world.trainer.version + 1}")
                batch = []
            if spent * QUARTERS >= rollouts * (len(curve) + 1):
                curve.append(world.evaluate(EVALUATED))
        return world.trainer.version, curve


def _blank(group: TrainGroup) -> bool:
    return all_alike(group.rollouts, limit=1, tolerance=0)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rollouts", type=int, default=6400)
    parser.add_argument("--seeds", default="0,1")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| seed | groups | updates | accuracy after each quarter |\n|---|---|---|---|")
    for seed in map(int, options.seeds.split(",")):
        for drop in (False, True):
            updates, curve = run(seed, options.rollouts, drop=drop)
            name = "with an advantage" if drop else "all"
            values = " ".join(f"{value:.3f}" for value in curve)
            print(f"| {seed} | {name} | {updates} | {values} |", flush=True)


if __name__ == "__main__":
    main()
