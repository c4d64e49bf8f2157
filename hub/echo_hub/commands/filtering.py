"""`echo-hub filter`: how often the base solves each prompt, and which are worth training on.

Promises: the run's own state is only read; the file is written when all is measured, whole. A
prompt is worth it if some of its answers are right and some are wrong: its pass rate, of so many
sampled answers by the node's engine on this machine, lies in a band. `task.kept` names the file,
and then a run draws its train prompts from those alone.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import trio

from echo_hub.audit.engine import Engine, Job, open_engine
from echo_hub.audit.rules import base_digest
from echo_hub.config import RunConfig, TaskSection, load_config
from echo_hub.learner.client import open_learner
from echo_hub.paths import RunFolder
from echo_hub.rollouts.checks import Rejection
from echo_hub.run_facts import resolve_base
from echo_hub.scoring.pool import Scorers, open_scorers
from echo_hub.scoring.process import MadePrompt
from echo_hub.tasks.kept import Kept
from echo_hub.tasks.replay import Answered
from echo_hub.tokens import Tokenizer
from echo_p2p.errors import ConfigError
from echo_p2p.wire import Sampling

_ROWS = 64
_DEADLINE_S = 900.0

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Band:
    """Pass rates that are kept: from `low` to `high`, both among them."""

    low: float
    high: float


def filter_run(
    folder: RunFolder,
    out: Path,
    *,
    prompts: int,
    rollouts: int,
    band: Band,
    progress: Progress,
) -> list[Kept]:
    """Measure the first train prompts of each task, and write what is kept to `out`.

    Args:
        prompts: of each task, at most; and `rollouts`, sampled answers to each.
    """
    if not 0 <= band.low <= band.high <= 1:
        raise ConfigError(
            f"a band from {band.low} to {band.high} is none.", fix="Give --low and --high in 0..1."
        )
    config = load_config(folder.config)
    base = resolve_base(config.base.path)
    with tempfile.TemporaryDirectory(prefix="echo-filter-") as scratch:
        made = trio.run(_measure, config, base, Path(scratch), prompts, rollouts, band, progress)
    for one in made:
        if not one.prompts:
            raise ConfigError(
                f"task {one.label}: none of {len(one.rates)} prompts was solved by {band.low:.0%} "
                f"to {band.high:.0%} of its answers, and nothing was written.",
                fix="Widen the band, measure more prompts, or take an easier or harder task.",
            )
    draft = out.with_name(f".{out.name}.draft")
    try:
        draft.write_bytes(msgspec.json.encode(made) + b"\n")
        draft.replace(out)
    except OSError as error:
        raise ConfigError(f"cannot write {out}: {error.strerror}.") from error
    return made


def _unfiltered(config: RunConfig) -> RunConfig:
    tasks = tuple(task.model_copy(update={"kept": ""}) for task in config.all_tasks)
    return config.model_copy(update={"tasks": tasks} if config.tasks else {"task": tasks[0]})


async def _measure(
    config: RunConfig,
    base: Path,
    scratch: Path,
    prompts: int,
    rollouts: int,
    band: Band,
    progress: Progress,
) -> list[Kept]:
    digest = base_digest(base)
    unfiltered = _unfiltered(config)
    async with open_learner(
        unfiltered.model_dump_json(),
        base=base,
        checkpoint=None,
        out=scratch / "v0",
        deadline_s=_DEADLINE_S,
    ):
        pass  # it has written version 0, whose adapter adds nothing to the base
    found: list[Kept] = []
    threads = config.learner.threads
    async with (
        open_scorers(unfiltered, base) as scorers,
        open_engine(base, config.base.dtype, threads=threads, max_sequences=_ROWS) as engine,
    ):
        await engine.activate(0, scratch / "v0" / "adapter")
        for number, task in enumerate(config.all_tasks):
            trial = _Trial(config, base, scorers, engine, number, task, rollouts)
            rates = await trial.rates(prompts, progress)
            kept = [i for i, rate in rates.items() if band.low <= rate <= band.high]
            found.append(
                Kept(
                    label=task.called,
                    name=task.name,
                    options=task.options,
                    seed=config.run.seed,
                    base=digest,
                    rollouts=rollouts,
                    low=band.low,
                    high=band.high,
                    rates=sorted(rates.items()),
                    prompts=kept,
                )
            )
    return found


class _Trial:
    """Measures one task's prompts."""

    def __init__(
        self,
        config: RunConfig,
        base: Path,
        scorers: Scorers,
        engine: Engine,
        number: int,
        task: TaskSection,
        rollouts: int,
    ) -> None:
        tokenizer, how = Tokenizer.load(base), config.sampling
        self._sampling = Sampling(
            temperature=how.temperature,
            top_k=how.top_k,
            top_p=how.top_p,
            max_new_tokens=how.max_new_tokens,
            stop=tokenizer.eos,
        )
        self._mixture = config.mixture
        self._seed = config.run.seed
        self._scorers = scorers
        self._engine = engine
        self._number = number
        self._task = task
        self._rollouts = rollouts

    async def rates(self, prompts: int, progress: Progress) -> dict[int, float]:
        """The pass rate of each of the first prompts that can be made and scored, by its index."""
        rates: dict[int, float] = {}
        seen: set[tuple[object, ...]] = set()
        numbers = self._mixture.first_of(self._number, prompts)
        at_once = max(1, _ROWS // self._rollouts)
        for start in range(0, prompts, at_once):
            some = numbers[start : start + at_once]
            made = await self._scorers.orders("train", some)
            fresh = []
            for index, number, prompt in zip(range(start, prompts), some, made, strict=False):
                # a dataset begins again after its last row
                if isinstance(prompt, MadePrompt) and (key := _key(prompt)) not in seen:
                    seen.add(key)
                    fresh.append((index, number, prompt))
            if not fresh and any(isinstance(prompt, MadePrompt) for prompt in made):
                break
            rates |= await self._rates_of(fresh)
            progress(self._task.called, min(prompts, start + at_once), prompts)
        return rates

    async def _rates_of(self, fresh: Sequence[tuple[int, int, MadePrompt]]) -> dict[int, float]:
        for _, _, prompt in fresh:
            if prompt.turns is not None and not prompt.turns.environment:
                raise ConfigError(
                    f"task {self._task.called} answers the policy turn by turn at the hub, which "
                    "cannot be measured beforehand.",
                    fix="Filter tasks whose environment nodes have, or that are answered once.",
                )
        chance = random.Random(f"{self._seed}/{self._number}/{fresh[0][0]}" if fresh else "")
        jobs = [
            Job(prompt.tokens, chance.getrandbits(62), index, self._sampling, prompt.turns)
            for _, _, prompt in fresh
            for index in range(self._rollouts)
        ]
        answers = await self._engine.generate(jobs) if jobs else []
        rates = {}
        for place, (index, number, prompt) in enumerate(fresh):
            mine = answers[place * self._rollouts : (place + 1) * self._rollouts]
            rewards: Any = await self._scorers.score(
                "train",
                number,
                prompt.tokens,
                [Answered(answer.tokens, answer.observed) for answer in mine],
            )
            if not isinstance(rewards, Rejection):
                solved = sum(reward >= self._task.solved_at for reward in rewards)
                rates[index] = solved / self._rollouts
        return rates


def _key(prompt: MadePrompt) -> tuple[object, ...]:
    """What makes a prompt another one: a dialogue may begin with the same words as others."""
    state = prompt.turns.state if prompt.turns else b""
    return (*prompt.tokens, state)
