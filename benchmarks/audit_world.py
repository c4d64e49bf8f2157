"""What benchmarks/audit.py works with: a model, trained adapters, engine, auditor, and cheats."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from echo_hub.audit.derive import Auditor
from echo_hub.audit.margins import TokenEvidence
from echo_hub.config import RunConfig
from echo_hub.learner.messages import Audit, AuditRollout, TrainGroup, TrainRollout
from echo_hub.learner.policy import Policy
from echo_hub.learner.trainer import Trainer
from echo_hub.run_facts import resolve_base
from echo_hub.tasks import make_task
from echo_hub.tokens import Tokenizer
from echo_node.engines.base import Job
from echo_node.engines.driver import Driver
from echo_node.engines.torch import TorchEngine
from echo_p2p.wire import Sampling

ROWS = 256


@dataclass(frozen=True)
class Answers:
    """One group as a node hands it in, and `index`, the number of its prompt."""

    index: int
    prompt: list[int]
    seed: int
    tokens: list[list[int]]
    logprobs: list[list[float]]


@dataclass
class World:
    """A run at version `newest`, with the adapter folders of all versions."""

    name: str
    config: RunConfig
    base: Path
    folder: Path

    def __post_init__(self) -> None:
        self.tokenizer = Tokenizer.load(self.base)
        self.task = make_task(self.config.task.name, {}, 0)
        self.policy = Policy.load(self.base, self.config.learner, dtype="float32", seed=0)
        self.auditor = Auditor(self.policy)
        self.newest = 0
        self.sampling = Sampling(
            temperature=1.0,
            max_new_tokens=self.config.sampling.max_new_tokens,
            stop=self.tokenizer.eos,
        )
        self.size = self.config.sampling.group_size

    def adapter(self, version: int) -> Path:
        return self.folder / f"v{version}" / "adapter"

    def engine(self, version: int, dtype: str = "float32", change: str | None = None) -> Driver:
        """The node's engine with a version; `change` names what a cheat does to its weights."""
        engine = Driver(TorchEngine(max_sequences=ROWS, device="cpu"))
        engine.load(self.base, dtype)  # type: ignore[arg-type]
        if change == "noise":
            torch.manual_seed(1)
            _each_matrix(engine, lambda w: w + 0.05 * w.std() * torch.randn_like(w))
        engine.activate(version, self.adapter(version))
        if change in ("int8", "int4"):
            levels = 127 if change == "int8" else 7
            _each_matrix(engine, lambda w: _rounded(w, levels))
        return engine

    @cached_property
    def honest_engine(self) -> Driver:
        """The engine at the newest version."""
        return self.engine(self.newest)

    def prompts(self, start: int, count: int) -> list[tuple[int, list[int]]]:
        return [
            (i, self.tokenizer.encode(self.task.prompt("train", i).text, "raw"))
            for i in range(start, start + count)
        ]

    def generate(
        self,
        engine: Driver,
        prompts: Sequence[tuple[int, list[int]]],
        *,
        salt: int = 0,
        sampling: Sampling | None = None,
    ) -> list[Answers]:
        """Groups as the engine answers their leases; another `salt` is another seed."""
        seeds = [(1000 + index) << 20 | salt for index, _ in prompts]
        jobs = [
            Job(prompt, seed, member, sampling or self.sampling)
            for (_, prompt), seed in zip(prompts, seeds, strict=True)
            for member in range(self.size)
        ]
        done = engine.generate(jobs)
        return [
            Answers(
                index, prompt, (1000 + index) << 20,
                [c.tokens for c in done[i * self.size : (i + 1) * self.size]],
                [c.logprobs for c in done[i * self.size : (i + 1) * self.size]],
            )
            for i, (index, prompt) in enumerate(prompts)
        ]  # fmt: skip

    def reward(self, index: int, tokens: list[int]) -> float:
        return self.task.reward(self.task.prompt("train", index), self.tokenizer.decode(tokens))

    def train(self, versions: int, groups: int) -> None:
        """Make versions 0 to `versions`, each trained on what the one before it generated."""
        trainer = Trainer(self.policy, self.config)
        trainer.save(self.folder / "v0")
        engine = self.engine(0)
        for version in range(versions):
            engine.activate(version, self.adapter(version))
            work = self.generate(engine, self.prompts(version * groups, groups))
            scored = [
                TrainGroup(
                    version,
                    g.prompt,
                    [
                        TrainRollout(t, p, self.reward(g.index, t))
                        for t, p in zip(g.tokens, g.logprobs, strict=True)
                    ],
                )
                for g in work
            ]
            trainer.train(scored, self.folder / f"v{version + 1}")
        self.newest = versions

    def audit(self, group: Answers, version: int | None = None) -> TokenEvidence:
        version = self.newest if version is None else version
        claims = zip(group.tokens, group.logprobs, strict=True)
        return self.auditor.derive_tokens(
            Audit(
                version=version,
                adapter=str(self.adapter(version)),
                prompt=group.prompt,
                seed=group.seed,
                temperature=1.0,
                rollouts=[AuditRollout(tokens, logprobs) for tokens, logprobs in claims],
            ),
        )


def _each_matrix(engine: Driver, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    assert isinstance(engine.engine, TorchEngine)
    for parameter in engine.engine._model.parameters():
        if parameter.ndim == 2:
            parameter.data = change(parameter.data)


def _rounded(weight: torch.Tensor, levels: int) -> torch.Tensor:
    scale = weight.abs().amax(1, keepdim=True) / levels
    return (weight / scale).round().clamp(-levels, levels) * scale


# --- cheats ---------------------------------------------------------------------------------------

Prompts = list[tuple[int, list[int]]]
Cheat = Callable[[World, Prompts], list[Answers]]


def with_engine(change: str | None = None, age: int = 0) -> Cheat:
    """The right prompt and seed, another policy."""

    def cheat(world: World, prompts: Prompts) -> list[Answers]:
        version = world.newest - age if age >= 0 else 0
        return world.generate(world.engine(version, change=change), prompts)

    return cheat


def drawn(temperature: float = 1.0, salt: int = 0) -> Cheat:
    """The right policy, drawn from in another way."""

    def cheat(world: World, prompts: Prompts) -> list[Answers]:
        how = Sampling(
            temperature=temperature,
            max_new_tokens=world.sampling.max_new_tokens,
            stop=world.sampling.stop,
        )
        return world.generate(world.honest_engine, prompts, salt=salt, sampling=how)

    return cheat


def best_of(n: int) -> Cheat:
    """The honest answer if it is right, else the first right one of n tries."""

    def cheat(world: World, prompts: Prompts) -> list[Answers]:
        groups = world.generate(world.honest_engine, prompts)
        for salt in range(1, n):
            tries = world.generate(world.honest_engine, prompts, salt=salt)
            for group, other in zip(groups, tries, strict=True):
                for i, tokens in enumerate(group.tokens):
                    wrong = world.reward(group.index, tokens) < 1
                    if wrong and world.reward(group.index, other.tokens[i]) == 1:
                        group.tokens[i], group.logprobs[i] = other.tokens[i], other.logprobs[i]
        return groups

    return cheat


def edited(how: Callable[[World, Answers], Answers]) -> Cheat:
    """Honest groups, changed afterwards."""

    def cheat(world: World, prompts: Prompts) -> list[Answers]:
        return [how(world, g) for g in world.generate(world.honest_engine, prompts)]

    return cheat


def hand_written(world: World, group: Answers) -> Answers:
    """A right answer in place of the group's first wrong one, if there is one."""
    wrong = [i for i, tokens in enumerate(group.tokens) if world.reward(group.index, tokens) < 1]
    if not wrong:
        return group
    text = world.tokenizer.decode(group.prompt)
    if world.name == "addmix3":
        a, b = text.rstrip("=").split("+")
        steps, carry = [], 0
        for x, y in zip(reversed(a), reversed(b), strict=True):
            steps.append(f"{x}+{y}+{carry}={int(x) + int(y) + carry}")
            carry = (int(x) + int(y) + carry) // 10
        answer = world.tokenizer.encode(f"{','.join(steps)}>{int(a) + int(b)}", "raw")
    else:
        a, b = text.splitlines()[-1].rstrip(" =").split("+")
        answer = world.tokenizer.encode(f" {int(a) + int(b)}\n", "raw")
    answer = [*answer[: world.sampling.max_new_tokens - 1], world.sampling.stop[0]]
    return _with(group, wrong[0], answer)


def truncated(world: World, group: Answers) -> Answers:
    half = group.tokens[0][: max(1, len(group.tokens[0]) // 2)]
    return _with(group, 0, [*half, world.sampling.stop[0]])


def few_tokens(world: World, group: Answers) -> Answers:
    """Two tokens of one answer replaced, as if to repair it."""
    chance = random.Random(group.seed)
    answer = list(group.tokens[0])
    for _ in range(2):
        at = chance.randrange(max(1, len(answer) - 1))
        answer[at] = chance.choice([t for g in group.tokens for t in g[:-1]] or answer)
        if answer[at] == group.tokens[0][at]:
            answer[at] = (answer[at] + 1) % world.tokenizer.vocab_size
    return _with(group, 0, answer)


def invented_logprobs(world: World, group: Answers) -> Answers:
    return dataclasses.replace(group, logprobs=[[-0.1] * len(t) for t in group.tokens])


def altered_prompt(world: World, prompts: Prompts) -> list[Answers]:
    """The task's next prompt is answered in place of the one that was ordered."""
    others = [(i, world.prompts(i + 1, 1)[0][1]) for i, _ in prompts]
    groups = world.generate(world.honest_engine, others)
    return [
        dataclasses.replace(g, prompt=prompt)
        for g, (_, prompt) in zip(groups, prompts, strict=True)
    ]


def _with(group: Answers, at: int, answer: list[int]) -> Answers:
    tokens, logprobs = list(group.tokens), list(group.logprobs)
    tokens[at], logprobs[at] = answer, [-0.1] * len(answer)
    return dataclasses.replace(group, tokens=tokens, logprobs=logprobs)


CHEATS: dict[str, Cheat] = {
    "wrong base (weights 5 % off)": with_engine("noise"),
    "int8 weights": with_engine("int8"),
    "int4 weights": with_engine("int4"),
    "adapter one version old": with_engine(age=1),
    "adapter two versions old": with_engine(age=2),
    "adapter eight versions old": with_engine(age=8),
    "no adapter": with_engine(age=-1),
    "temperature 0.9": drawn(0.9),
    "temperature 1.1": drawn(1.1),
    "greedy": drawn(1e-4),
    "best of 4 by reward": best_of(4),
    "best of 16 by reward": best_of(16),
    "hand-written right answer": edited(hand_written),
    "re-signed (another seed)": drawn(salt=77),
    "truncated answer": edited(truncated),
    "two tokens edited": edited(few_tokens),
    "invented log-probs": edited(invented_logprobs),
    "altered prompt": altered_prompt,
}


def addmix3(folder: Path, versions: int) -> World:
    from echo_hub.commands.presets import preset

    world = World("addmix3", preset("addmix3", run_id="bench", overrides={}),
                  resolve_base("addmix3"), folder)  # fmt: skip
    world.train(versions, 32)
    return world


def smollm2(folder: Path, base: Path | None, versions: int) -> World:
    from echo_hub.commands.presets import preset
    from echo_hub.models.smollm2 import make_smollm2

    base = base or make_smollm2(folder / "smollm2")
    config = preset("smollm2", run_id="bench", overrides={"base": {"path": str(base)}})
    world = World("smollm2", config, base, folder)
    world.train(versions, 4)
    return world
