"""`echo-hub calibrate`: honest rollouts of the node's engine, as the run's auditor sees them.

Promises: the run's own state is only read; `audit.json` is written when all is measured, whole.
Adapters are the versions that the run has on disk. A run that has none yet is measured with a
stand-in whose weights are as large as some updates will make them: the first version's adapter adds
nothing to the base, and would not show what merging costs in precision.
"""

from __future__ import annotations

import itertools
import random
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import trio
from safetensors.numpy import load_file, save_file

from echo_hub.audit.calibration import Calibration, calibrate, save
from echo_hub.audit.engine import Completion, Engine, Job, open_engine
from echo_hub.audit.rules import setting_of
from echo_hub.config import RunConfig, load_config
from echo_hub.learner.client import Learner, open_learner
from echo_hub.learner.messages import Audit, Audited, AuditRollout
from echo_hub.paths import RunFolder
from echo_hub.run_facts import resolve_base
from echo_hub.scoring.pool import Scorers, open_scorers
from echo_hub.tokens import Tokenizer
from echo_p2p.errors import ConfigError
from echo_p2p.wire import Sampling

_ROWS = 64
_MOST_VERSIONS = 4
_STAND_IN_STEPS = 20.0  # the stand-in's weights are so many learning rates
_DEADLINE_S = 900.0

Progress = Callable[[int, int], None]


def calibrate_run(folder: RunFolder, *, rollouts: int, progress: Progress) -> Calibration:
    """Measure `rollouts` honest rollouts of a run and write its `audit.json`."""
    config = load_config(folder.config)
    base = resolve_base(config.base.path)
    with tempfile.TemporaryDirectory(prefix="echo-calibrate-") as scratch:
        found, versions, engine = trio.run(
            _measure, config, folder, base, Path(scratch), rollouts, progress
        )
    setting = setting_of(config, base)
    calibration = calibrate(setting, found, engine=engine, versions=versions)
    save(calibration, folder.calibration)
    return calibration


async def _measure(
    config: RunConfig,
    folder: RunFolder,
    base: Path,
    scratch: Path,
    rollouts: int,
    progress: Progress,
) -> tuple[list[Audited], list[int], str]:
    found: list[Audited] = []
    threads = config.learner.threads
    async with (
        open_learner(
            config.model_dump_json(),
            base=base,
            checkpoint=None,
            out=scratch / "v0",
            deadline_s=_DEADLINE_S,
        ) as learner,
        open_scorers(config, base) as scorers,
        open_engine(base, config.base.dtype, threads=threads, max_sequences=_ROWS) as engine,
    ):
        adapters = _adapters(folder) or {0: _stand_in(scratch, config.learner.learning_rate)}
        turn = itertools.cycle(adapters.items())
        while len(found) < rollouts:
            start, count = len(found), min(_ROWS, rollouts - len(found))
            jobs = await _jobs(config, base, scorers, start, count)
            version, adapter = next(turn)
            found += await _look(engine, learner, jobs, version, adapter)
            progress(len(found), rollouts)
        info = engine.info
    return found, list(adapters), f"{info.name} {info.dtype} {info.device}"


async def _jobs(
    config: RunConfig, base: Path, scorers: Scorers, start: int, count: int
) -> list[Job]:
    """Answers to held-out prompts, each with a seed of its own."""
    tokenizer = Tokenizer.load(base)
    how = config.sampling
    sampling = Sampling(
        temperature=how.temperature,
        top_k=how.top_k,
        top_p=how.top_p,
        max_new_tokens=how.max_new_tokens,
        stop=tokenizer.eos,
    )
    prompts = await scorers.orders("heldout", list(range(start, start + count)))
    for prompt in prompts:
        if isinstance(prompt, str):
            raise ConfigError(f"the task makes no prompt: {prompt}.")
    chance = random.Random(start)
    return [
        Job(prompt.tokens, chance.getrandbits(62), 0, sampling, prompt.turns)
        for prompt in prompts
        if not isinstance(prompt, str)
    ]


async def _look(
    engine: Engine, learner: Learner, jobs: list[Job], version: int, adapter: Path
) -> list[Audited]:
    await engine.activate(version, adapter)
    answers = await engine.generate(jobs)
    return [
        await learner.audit(_audit_of(job, answer, version, adapter), deadline_s=_DEADLINE_S)
        for job, answer in zip(jobs, answers, strict=True)
    ]


def _audit_of(job: Job, answer: Completion, version: int, adapter: Path) -> Audit:
    return Audit(
        version=version,
        adapter=str(adapter),
        prompt=job.prompt,
        seed=job.seed,
        temperature=job.sampling.temperature,
        top_k=job.sampling.top_k,
        top_p=job.sampling.top_p,
        rollouts=[
            AuditRollout(tokens=answer.tokens, logprobs=answer.logprobs, observed=answer.observed)
        ],
    )


def _adapters(folder: RunFolder) -> dict[int, Path]:
    """The newest trained versions on disk."""
    found = {}
    for checkpoint in sorted(folder.checkpoints.glob("v[0-9]*"))[-_MOST_VERSIONS:]:
        version = int(checkpoint.name[1:])
        if version > 0 and (checkpoint / "adapter").is_dir():
            found[version] = checkpoint / "adapter"
    return found


def _stand_in(scratch: Path, learning_rate: float) -> Path:
    adapter = scratch / "v0" / "adapter"
    file = next(adapter.glob("*.safetensors"))
    rng = np.random.default_rng(0)
    tensors = {
        name: tensor + rng.normal(scale=_STAND_IN_STEPS * learning_rate, size=tensor.shape)
        for name, tensor in load_file(file).items()
    }
    save_file({n: t.astype(np.float32) for n, t in tensors.items()}, file, {"format": "pt"})
    return adapter
