"""Our MLX engine against mlx-lm's own batch generator, its sampler's cost, and a version's swap.

Both answer the same prompts with the same adapter in the same process, in turns, as many tokens
each. The generator is driven as mlx-lm's documentation does it: `BatchGenerator`, with its LoRA
layers and its categorical sampler. Ours also derives every token from its lease's seed, returns raw
log-probabilities in float32, and shares the prefill of the answers to one prompt.

    python benchmarks/engines_mlx.py [--model FOLDER] [--rows 1 8 32] [--tokens 64] [--rounds 5]
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.generate import BatchGenerator
from mlx_lm.sample_utils import make_sampler
from mlx_lm.tuner.lora import LoRALinear
from mlx_lm.utils import load_model
from safetensors.numpy import save_file

from echo_node.engines.adapter_config import (
    ADAPTER_CONFIG,
    ADAPTER_TENSORS,
    read_config,
    scale_of,
)
from echo_node.engines.base import Job
from echo_node.engines.driver import Driver
from echo_node.engines.mlx import MlxEngine
from echo_node.engines.mlx_adapter import to_mlx
from echo_node.engines.mlx_config import overrides
from echo_node.engines.mlx_sampling import draw_large
from echo_p2p.noise import row_keys
from echo_p2p.wire import Sampling

ADDMIX3 = Path(__file__).parent.parent / "hub/echo_hub/models/addmix3"
GROUP = 8
LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def make_adapter(base: Path, folder: Path, seed: int, rank: int = 16) -> Path:
    chance = np.random.default_rng(seed)
    arrays = mx.load(str(next(base.glob("*.safetensors"))))
    tensors = {}
    for name, array in arrays.items():
        layer = name.removesuffix(".weight")
        if layer.endswith(LAYERS):
            outputs, inputs = array.shape
            shapes = {"A": (rank, inputs), "B": (outputs, rank)}
            for kind, shape in shapes.items():
                key = f"base_model.model.{layer}.lora_{kind}.weight"
                tensors[key] = chance.normal(0, 0.01, shape).astype(np.float32)
    folder.mkdir()
    save_file(tensors, folder / ADAPTER_TENSORS)
    config = {"r": rank, "lora_alpha": 2 * rank, "target_modules": list(LAYERS)}
    (folder / ADAPTER_CONFIG).write_text(json.dumps(config))
    return folder


def make_prompts(count: int, vocab_size: int) -> list[list[int]]:
    """Prompts of 4 to 12 tokens, up to GROUP answers to each."""
    chance = random.Random(0)
    groups = [
        [chance.randrange(3, vocab_size) for _ in range(chance.randint(4, 12))]
        for _ in range(-(-count // GROUP))
    ]
    return [groups[i // GROUP] for i in range(count)]


def ours(base: Path, adapter: Path, prompts: list[list[int]], tokens: int) -> Callable[[], int]:
    engine = Driver(MlxEngine(max_sequences=len(prompts)))
    engine.load(base, "float32")
    engine.activate(1, adapter)
    sampling = Sampling(temperature=1.0, max_new_tokens=tokens, stop=())
    runs = iter(range(1, 1 << 20))

    def run() -> int:
        seed = next(runs) << 20
        jobs = [Job(p, seed + i // GROUP, i % GROUP, sampling) for i, p in enumerate(prompts)]
        return sum(len(answer.tokens) for answer in engine.generate(jobs))

    return run


def bare(base: Path, adapter: Path, prompts: list[list[int]], tokens: int) -> Callable[[], int]:
    config = json.loads((base / "config.json").read_text())
    model, _ = load_model(base, model_config=overrides(config))
    model.set_dtype(mx.float32)
    shape = read_config(adapter)
    pairs = to_mlx(mx.load(str(adapter / ADAPTER_TENSORS)), shape["r"])
    modules = dict(model.named_modules())
    layers = [
        (name, LoRALinear.from_base(modules[name], r=shape["r"], scale=scale_of(shape)))
        for name in pairs
    ]
    model.update_modules(tree_unflatten(layers))
    weights = [(f"{n}.{kind}", array) for n, pair in pairs.items() for kind, array in pair.items()]
    model.load_weights(weights, strict=False)
    model.eval()
    mx.eval([array for _, array in tree_flatten(model.parameters())])

    def run() -> int:
        generator = BatchGenerator(
            model,
            sampler=make_sampler(temp=1.0),
            completion_batch_size=len(prompts),
            prefill_batch_size=len(prompts),
        )
        generator.insert(prompts, [tokens] * len(prompts))
        count = 0
        while responses := generator.next_generated():
            for response in responses:
                response.logprobs[response.token].item()
            count += len(responses)
        generator.close()
        return count

    return run


def rates(
    runs: dict[str, Callable[[], int]], rounds: int, clock: Callable[[], float]
) -> dict[str, list[float]]:
    """Tokens per second of each, taken in turns."""
    found: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()
    for _ in range(rounds):
        for name, run in runs.items():
            start = clock()
            found[name].append(run() / (clock() - start))
    return found


def sampler_ms(rows: int, vocab_size: int, rounds: int) -> dict[str, float]:
    """Milliseconds to draw a token for each row, by our sampler and by MLX's categorical."""
    logits = mx.random.normal((rows, vocab_size)) * 4
    tokens = mx.arange(vocab_size, dtype=mx.uint32)[None]
    keys = [mx.array(row_keys([(n, r, 0) for r in range(rows)])) for n in range(rounds)]
    mx.eval(logits, tokens, keys)
    ways: dict[str, Callable[[int], mx.array]] = {
        "seeded": lambda n: draw_large(logits, keys[n], tokens),
        "categorical": lambda n: mx.random.categorical(logits),
        "log-softmax": lambda n: logits - mx.logsumexp(logits, axis=-1, keepdims=True),
    }
    found = {}
    for name, way in ways.items():
        mx.eval(way(0))
        times = []
        for n in range(rounds):
            start = time.perf_counter()
            mx.eval(way(n))
            times.append(time.perf_counter() - start)
        found[name] = 1e3 * statistics.median(times)
    return found


def swap_ms(base: Path, adapters: list[Path], rounds: int) -> tuple[float, float]:
    """Milliseconds to read a version from disk and check it; and to change the weights worn."""
    driver = Driver(MlxEngine(max_sequences=8))
    driver.load(base, "float32")
    added, worn = [], []
    for n in range(rounds):
        start = time.perf_counter()
        driver.activate(n, adapters[n % 2])
        added.append(time.perf_counter() - start)
        driver.release(n - 1)
    engine = driver.engine
    assert isinstance(engine, MlxEngine)
    engine.add(rounds, adapters[0])
    for n in range(rounds):
        start = time.perf_counter()
        engine.wear(rounds - 1 + n % 2)
        worn.append(time.perf_counter() - start)
    return 1e3 * statistics.median(added), 1e3 * statistics.median(worn)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=ADDMIX3)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--busy", action="store_true", help="by CPU time: others run here too")
    asked = parser.parse_args()
    clock = time.process_time if asked.busy else time.perf_counter
    vocab_size = json.loads((asked.model / "config.json").read_text())["vocab_size"]
    with tempfile.TemporaryDirectory() as folder:
        adapters = [make_adapter(asked.model, Path(folder, str(n)), n) for n in (1, 2)]
        print(f"MLX {mx.__version__} on {mx.default_device()}, float32, tokens/s (median; best)")
        for rows in asked.rows:
            prompts = make_prompts(rows, vocab_size)
            given = (asked.model, adapters[0], prompts, asked.tokens)
            found = rates({"ours": ours(*given), "bare": bare(*given)}, asked.rounds, clock)
            middle = {name: statistics.median(values) for name, values in found.items()}
            best = {name: max(values) for name, values in found.items()}
            over = [one["bare"] / one["ours"] - 1 for one in (middle, best)]
            print(
                f"{rows:4d} rows: ours {middle['ours']:7.0f}; {best['ours']:7.0f}   bare "
                f"{middle['bare']:7.0f}; {best['bare']:7.0f}   overhead {over[0]:+.1%}; "
                f"{over[1]:+.1%}"
            )
        added, worn = swap_ms(asked.model, adapters, 20)
        print(f"a version: read, checked and tried in {added:.1f} ms, changed in {worn:.2f} ms")
    for rows in asked.rows:
        times = sampler_ms(rows, 150_000, 7)
        shown = ", ".join(f"{name} {value:.1f} ms" for name, value in times.items())
        print(f"{rows:4d} rows of 150,000 tokens: {shown}")


if __name__ == "__main__":
    main()
