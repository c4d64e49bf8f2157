"""What `staleness.py` trains: a policy under a lag that is forced on every update.

The learner's real policy, trainer and configuration; the node's real torch engine, which loads the
adapter that an update wrote. The same seed gives every method the same first adapter, prompts and
sampling noise.
"""

from __future__ import annotations

import random
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from echo_hub.config import RunConfig
from echo_hub.learner.messages import TrainGroup, TrainRollout
from echo_hub.learner.policy import Policy
from echo_hub.learner.trainer import Trainer
from echo_hub.models import addmix3_path
from echo_hub.tasks.addmix import AddMix
from echo_hub.tasks.base import Prompt, Split
from echo_hub.tokens import Tokenizer
from echo_node.engines.base import Job
from echo_node.engines.driver import Driver
from echo_node.engines.torch import TorchEngine
from echo_p2p.wire import Sampling

GROUPS, GROUP_SIZE, LIMIT = 16, 8, 34
MOST_AT_ONCE = 512
"""Answers that the engine samples in one batch."""

_FLAT = {"rate_coupling": 0.0, "clip": (0.2, 0.2)}
_UNCLIPPED = {**_FLAT, "clip": (0.999, 999.0), "ratio_ceiling": 0.0}

METHODS: dict[str, dict[str, Any]] = {
    "default": {},
    "coupled": {"clip": (0.2, 0.2)},
    "wide": {"rate_coupling": 0.0},
    "clip": _FLAT,
    "uncorrected": {**_FLAT, "correction": "tis", "weight_bounds": (0.999, 1.0)},
    "ratio": _UNCLIPPED,
    "tis": {**_FLAT, "correction": "tis"},
    "mis": {**_FLAT, "correction": "mis", "weight_bounds": (0.5, 2.0)},
    "mis-sequence": {
        **_FLAT, "correction": "mis", "weight_bounds": (0.5, 2.0), "correction_level": "sequence",
    },
    "decoupled": {**_FLAT, "correction": "decoupled"},
    "decoupled-loglinear": {**_FLAT, "correction": "decoupled", "proximal": "loglinear"},
    "dapo": {**_FLAT, "loss": "dapo", "clip": (0.2, 0.28)},
    "gspo": {**_FLAT, "loss": "gspo", "clip": (3e-4, 4e-4)},
    "cispo": {**_FLAT, "loss": "cispo"},
    "bapo": {**_FLAT, "balanced_clip": True},
    "gac": {**_FLAT, "alignment_limit": 0.3},
    "vcpo": {**_FLAT, "rate_by_ess": True},
    "default-bapo": {"balanced_clip": True},
    "default-gac": {"alignment_limit": 0.3},
}  # fmt: skip
"""What each method sets in `[learner]`, over a learning rate of 1e-3. `clip` is GRPO with PPO's
clip and nothing else; `coupled` and `wide` have one half each of what `default` has beyond it.
`ratio` is the importance ratio without a clip, `uncorrected` has neither."""


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
        self.engine = Driver(TorchEngine(max_sequences=MOST_AT_ONCE, device="cpu"))
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


_NO_GUARD = {"gradient_factor": 1e9, "mismatch_kl": 1e9, "policy_kl": 1e9, "reward_drop": 1e9}
"""A method shows its own falls: no update is refused, unless it is not finite."""


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
            "guard": _NO_GUARD,
        }
    )
