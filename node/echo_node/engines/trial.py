"""A trial of an engine: tokens a second at given lengths, with an adapter that changes nothing.

The engine runs in its own process, as at work: one that crashes here raises `ProcessError`, and
nothing else happens.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import trio
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from echo_node.engines.adapter_config import ADAPTER_CONFIG, ADAPTER_TENSORS
from echo_node.engines.base import Dtype, EngineInfo, Job
from echo_node.engines.remote import RemoteEngine
from echo_p2p.errors import EngineError
from echo_p2p.wire import Sampling

RANK = 16
ROUNDS = 3
ENOUGH_S = 6.0
"""No other round is begun after so long."""
WARM_TOKENS = 4


def write_neutral_adapter(base: Path, folder: Path) -> Path:
    """An adapter of all the linear layers of a base's attention and MLP that adds zero to each."""
    shapes: dict[str, list[int]] = {}
    try:
        for file in sorted(base.glob("*.safetensors")):
            with safe_open(file, framework="numpy") as weights:
                shapes |= {
                    name.removesuffix(".weight"): weights.get_slice(name).get_shape()
                    for name in weights.keys()  # noqa: SIM118 - it is no mapping
                    if name.endswith("_proj.weight")
                }
    except (OSError, SafetensorError) as error:
        raise EngineError(f"cannot read the weights in {base}: {error}.") from error
    if not shapes:
        raise EngineError(f"the base model in {base} has no linear layers of a kind known here.")
    tensors = {}
    for name, (out, into) in shapes.items():
        key = f"base_model.model.{name}"
        tensors[f"{key}.lora_A.weight"] = np.ones((RANK, into), np.float32)
        tensors[f"{key}.lora_B.weight"] = np.zeros((out, RANK), np.float32)
    folder.mkdir()
    save_file(tensors, folder / ADAPTER_TENSORS)
    targets = sorted({name.rpartition(".")[2] for name in shapes})
    config = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": RANK,
        "target_modules": targets,
    }  # fmt: skip
    (folder / ADAPTER_CONFIG).write_text(json.dumps(config), encoding="utf-8")
    return folder


async def tokens_per_second(
    engine: RemoteEngine,
    base: Path,
    *,
    dtype: Dtype,
    prompt: int,
    new_tokens: int,
    clock: Callable[[], float] = trio.current_time,
) -> tuple[EngineInfo, float]:
    """What the engine is, and how fast with all its places taken: its best of some rounds.

    EngineError or ProcessError: why there is no answer.
    """
    info = await engine.load(base, dtype)
    with tempfile.TemporaryDirectory(prefix="echo-bench-") as scratch:
        folder = await trio.to_thread.run_sync(
            write_neutral_adapter, base, Path(scratch) / "adapter"
        )
        await engine.activate(0, folder)
        await engine.generate(_work(info, prompt, min(WARM_TOKENS, new_tokens), turn=0))
        rates: list[float] = []
        began = clock()
        while len(rates) < ROUNDS and (not rates or clock() - began < ENOUGH_S):
            start = clock()
            answers = await engine.generate(_work(info, prompt, new_tokens, turn=len(rates) + 1))
            rates.append(sum(len(one.tokens) for one in answers) / (clock() - start))
    return info, max(rates)


def _work(info: EngineInfo, prompt: int, new_tokens: int, *, turn: int) -> list[Job]:
    chance = random.Random(turn)
    sampling = Sampling(temperature=1.0, max_new_tokens=new_tokens, stop=())
    return [
        Job([chance.randrange(info.vocab_size) for _ in range(prompt)], turn, i, sampling)
        for i in range(info.max_sequences)
    ]
