"""What the tests of all engines share: the demo's base, adapters, jobs, and what torch says."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from echo_hub.models import addmix3_path
from echo_hub.tokens import Tokenizer
from echo_node.engines.adapter_config import ADAPTER_CONFIG, ADAPTER_TENSORS
from echo_node.engines.base import Completion, Job
from echo_node.engines.driver import Driver
from echo_p2p.wire import Sampling

BASE = addmix3_path()
CONTEXT = 512  # of this base
EOS = (1,)
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]

Answers = Mapping[int, tuple[int, Completion]]
"""By number of the job: version and answer."""


def write_adapter(
    folder: Path, seed: int, *, base: Path = BASE, rank: int = 16, size: float = 0.02
) -> Path:
    """A PEFT adapter whose random weights are as large as some updates make them."""
    rng = np.random.default_rng(seed)
    tensors: dict[str, Any] = {}
    for file in sorted(base.glob("*.safetensors")):
        for name, shape in shapes(file).items():
            module = name.removesuffix(".weight")
            if module.rsplit(".", 1)[-1] in TARGETS:
                prefix = f"base_model.model.{module}"
                bound = shape[1] ** -0.5  # as PEFT begins
                tensors[f"{prefix}.lora_A.weight"] = rng.uniform(-bound, bound, (rank, shape[1]))
                tensors[f"{prefix}.lora_B.weight"] = rng.normal(0, size, (shape[0], rank))
    folder.mkdir(parents=True)
    save_file({n: t.astype(np.float32) for n, t in tensors.items()}, folder / ADAPTER_TENSORS)
    config = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": 2 * rank,
        "target_modules": TARGETS, "base_model_name_or_path": str(base),
    }  # fmt: skip
    (folder / ADAPTER_CONFIG).write_text(json.dumps(config))
    return folder


def shapes(file: Path) -> dict[str, list[int]]:
    """Name and shape of every tensor in a safetensors file."""
    with file.open("rb") as opened:
        header = json.loads(opened.read(int.from_bytes(opened.read(8), "little")))
    return {name: entry["shape"] for name, entry in header.items() if name != "__metadata__"}


def edit_tensors(folder: Path, change: Any) -> None:
    """Replace an adapter's tensors by what `change` makes of them."""
    file = folder / ADAPTER_TENSORS
    save_file(change(load_file(file)), file)


def sums(count: int, seed: int = 0, *, group: int = 8, **sampling: Any) -> list[Job]:
    """Answers to sums as the demo asks them: `group` to each."""
    chance = random.Random(seed)
    tokenizer = Tokenizer.load(BASE)
    how = Sampling(**{"temperature": 1.0, "max_new_tokens": 40, "stop": EOS, **sampling})
    jobs: list[Job] = []
    while len(jobs) < count:
        prompt = tokenizer.encode(f"{chance.randrange(1000)}+{chance.randrange(1000)}=", "raw")
        lease = chance.getrandbits(62)
        jobs += [Job(prompt, lease, index, how) for index in range(group)]
    return jobs[:count]


def mixed_work() -> list[Job]:
    """A few answers, drawn in every way; some begin in the middle of their noise, two are long."""
    jobs = [
        *sums(4, 1, group=2, max_new_tokens=10),
        *sums(2, 2, temperature=0.6, top_k=5, stop=(), max_new_tokens=10),
        *sums(2, 3, temperature=1.4, top_k=30, top_p=0.8, max_new_tokens=10),
    ]
    jobs += [Job(one.prompt, one.seed, one.index, one.sampling, start=9) for one in jobs[:2]]
    long = [3 + i % 50 for i in range(150)]
    return [*jobs, *(Job(long, 5, index, jobs[0].sampling) for index in range(2))]


def answer_all(driver: Driver, orders: Iterable[tuple[int, Job, int | None]]) -> Answers:
    """Submit jobs (number, job, version) and step until all are answered."""
    for number, job, version in orders:
        driver.submit(number, job, version)
    answers: dict[int, tuple[int, Completion]] = {}
    while driver.running:
        for one in driver.step():
            answers[one.number] = (one.version, one.completion)
    return answers


def differences(ours: Sequence[Completion], theirs: Sequence[Completion]) -> tuple[int, float]:
    """Answers whose tokens, end or spans differ; and the largest difference of log-probability."""
    unequal, largest = 0, 0.0
    for one, other in zip(ours, theirs, strict=True):
        if (one.tokens, one.finish, one.observed) != (other.tokens, other.finish, other.observed):
            unequal += 1
            continue
        gaps = np.abs(np.subtract(one.logprobs, other.logprobs))
        largest = max(largest, float(gaps.max(initial=0.0)))
    return unequal, largest
