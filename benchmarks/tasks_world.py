"""A run in one process: the torch engine samples, the task scores, the trainer steps, in turn.

All of it is what hub and node use; what is left out is the network, signatures, audits and lag.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from echo_hub.config import RunConfig
from echo_hub.learner.messages import TrainGroup, TrainRollout
from echo_hub.learner.policy import Policy
from echo_hub.learner.trainer import Trainer
from echo_hub.tasks import make_task
from echo_hub.tasks.base import AnyTask, Prompt, Split, Transcript
from echo_hub.tokens import Tokenizer
from echo_node.engines.base import Job
from echo_node.engines.driver import Driver
from echo_node.engines.torch import TorchEngine
from echo_p2p.environments import environment
from echo_p2p.wire import Sampling

_ROWS = 256


@dataclass
class Rollout:
    """One answer as it comes about; `observed` are the spans that the environment wrote."""

    prompt: Prompt
    prompt_tokens: list[int]
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    observed: list[tuple[int, int]] = field(default_factory=list)
    turns: list[str] = field(default_factory=list)
    observations: list[str] = field(default_factory=list)
    done: bool = False


class World:
    """A base, a task, a learner and an engine. `rollouts` and `sampled_tokens` count training."""

    def __init__(self, config: RunConfig, folder: Path) -> None:
        self.config = config
        self.rollouts = 0
        self.sampled_tokens = 0
        self._folder = folder
        self._task: Any = make_task(config.task.name, config.task.options, config.run.seed)
        base = Path(config.base.path)
        self._tokenizer = Tokenizer.load(base)
        policy = Policy.load(base, config.learner, dtype=config.base.dtype, seed=config.run.seed)
        self._trainer = Trainer(policy, config)
        self._engine = Driver(TorchEngine(max_sequences=_ROWS, device="cpu"))
        self._engine.load(base, config.base.dtype)
        self._trainer.save(folder / "v0")
        self._engine.activate(0, folder / "v0" / "adapter")
        self._drawn = 0
        self._seed = config.run.seed << 32

    def update(self) -> dict[str, float]:
        """Sample a batch, score it, step on it, and let the engine have the new version."""
        learner, size = self.config.learner, self.config.sampling.group_size
        indices = range(self._drawn, self._drawn + learner.groups_per_update)
        self._drawn = indices.stop
        rollouts = self._sample("train", [index for index in indices for _ in range(size)], size)
        groups = [
            TrainGroup(
                self._trainer.version,
                rollouts[start].prompt_tokens,
                [self._scored(rollout) for rollout in rollouts[start : start + size]],
            )
            for start in range(0, len(rollouts), size)
        ]
        self.rollouts += len(rollouts)
        old, new = (self._folder / f"v{self._trainer.version + i}" for i in (0, 1))
        metrics = self._trainer.train(groups, new)
        shutil.rmtree(old)
        self._engine.activate(self._trainer.version, new / "adapter")
        return metrics

    def evaluate(self, prompts: int) -> float:
        """Share of held-out prompts solved, one sampled answer each."""
        rollouts = self._sample("heldout", list(range(prompts)), 1)
        return statistics.fmean(self._reward(rollout) == 1.0 for rollout in rollouts)

    def _sample(self, split: Split, indices: Sequence[int], size: int) -> list[Rollout]:
        rollouts = []
        for index in indices:
            prompt = self._task.prompt(split, index)
            tokens = self._tokenizer.encode(prompt.text, self.config.task.template)
            rollouts.append(Rollout(prompt, tokens))
        while going := [i for i, rollout in enumerate(rollouts) if not rollout.done]:
            self._turn(rollouts, going, size)
        self.sampled_tokens += sum(len(r.tokens) for r in rollouts) if split == "train" else 0
        return rollouts

    def _turn(self, rollouts: list[Rollout], going: list[int], size: int) -> None:
        """One more turn of these."""
        self._seed += len(rollouts)  # another noise for every turn
        jobs = [
            Job(
                rollouts[i].prompt_tokens + rollouts[i].tokens,
                self._seed + i // size,
                i % size,
                self._sampling(rollouts[i]),
            )
            for i in going
        ]
        for i, completion in zip(going, self._engine.generate(jobs), strict=True):
            rollout = rollouts[i]
            rollout.tokens += completion.tokens
            rollout.logprobs += completion.logprobs
            rollout.turns.append(self._tokenizer.decode(completion.tokens))
            rollout.done = completion.finish == "length" or not self._hear(rollout)

    def _sampling(self, rollout: Rollout) -> Sampling:
        left = self.config.sampling.max_new_tokens - len(rollout.tokens)
        return Sampling(
            temperature=self.config.sampling.temperature,
            max_new_tokens=min(left, self.turn_tokens),
            stop=self._tokenizer.eos,
        )

    @property
    def turn_tokens(self) -> int:
        """Longest turn."""
        return self.config.sampling.turn_tokens or self.config.sampling.max_new_tokens

    def _hear(self, rollout: Rollout) -> bool:
        """What the environment says to the last turn; whether another one follows."""
        turns = rollout.prompt.turns
        if turns is None or len(rollout.turns) == turns.max_turns:
            return False
        said = environment(turns.environment)(turns.state, rollout.turns)
        if said is None:
            return False
        tokens = self._tokenizer.encode(said, "raw")
        start = len(rollout.tokens)
        if start + len(tokens) >= self.config.sampling.max_new_tokens:
            return False
        rollout.tokens += tokens
        rollout.logprobs += [0.0] * len(tokens)
        rollout.observed.append((start, len(rollout.tokens)))
        rollout.observations.append(said)
        return True

    def _scored(self, rollout: Rollout) -> TrainRollout:
        return TrainRollout(
            rollout.tokens, rollout.logprobs, self._reward(rollout), rollout.observed
        )

    def _reward(self, rollout: Rollout) -> float:
        if rollout.prompt.turns is None:
            return float(self._task.reward(rollout.prompt, rollout.turns[0]))
        transcript = Transcript(tuple(rollout.turns), tuple(rollout.observations))
        return float(self._task.reward(rollout.prompt, transcript))


@contextmanager
def a_world(config: RunConfig) -> Iterator[World]:
    """A world in a folder of its own, which goes when it is left."""
    with tempfile.TemporaryDirectory() as folder:
        yield World(config, Path(folder))


def rate(task: AnyTask, split: Split, count: int) -> float:
    """Instances a second of CPU time."""
    started = time.process_time()
    for index in range(count):
        task.prompt(split, index)
    return count / (time.process_time() - started)
