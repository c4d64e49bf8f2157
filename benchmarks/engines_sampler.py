"""What the seeded sampler costs at a large vocabulary, as a share of a step of a 1.5B model.

The sampler is measured as it is. Of the model's step only its matrix products are: of one layer of
Qwen2.5-1.5B's shape (28 layers, hidden 1536, inner 8960, keys and values 256 wide) and of its head,
in bfloat16, at the same batch; 28 of those layers and the head are less than the whole step, which
also has attention, norms and the caller. So the share is at most what is printed. The logits are
those of a peaked distribution, as trained models give: normal, eight nats wide.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from echo_p2p.sampling import keys_to_torch, row_keys, sample

LAYERS, HIDDEN, INNER, KV = 28, 1536, 8960, 256


def median_s(call: Callable[[], object], rounds: int) -> float:
    times = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def step_s(batch: int, vocabulary: int) -> float:
    """The matrix products of one decoding step."""
    shapes = [(HIDDEN, HIDDEN + 2 * KV), (HIDDEN, HIDDEN), (HIDDEN, 2 * INNER), (INNER, HIDDEN)]
    # several layers' worth, so that no weight is still in a cache when it is used again
    layers = [
        [torch.randn(out, width, dtype=torch.bfloat16) for width, out in shapes] for _ in range(4)
    ]
    head = torch.randn(vocabulary, HIDDEN, dtype=torch.bfloat16)
    inputs = [torch.randn(batch, width, dtype=torch.bfloat16) for width, _ in shapes]

    def some_layers() -> None:
        for layer in layers:
            for weight, x in zip(layer, inputs, strict=True):
                torch.nn.functional.linear(x, weight)

    with torch.inference_mode():
        layer_s = median_s(some_layers, 5) / len(layers)
        return LAYERS * layer_s + median_s(lambda: torch.nn.functional.linear(inputs[0], head), 5)


def measure(vocabulary: int) -> None:
    for batch in (1, 8, 32):
        generator = torch.Generator().manual_seed(0)
        logits = 8.0 * torch.randn(batch, vocabulary, generator=generator)
        keys = keys_to_torch(row_keys([(7, row, 3) for row in range(batch)]))
        ours = median_s(lambda a=logits, b=keys: sample(a, b, 1.0), 9)  # type: ignore[misc]
        step = step_s(batch, vocabulary)
        print(
            f"torch, {torch.get_num_threads()} threads, batch {batch:2}: sampler "
            f"{1e3 * ours:7.2f} ms, products of a 1.5B step {1e3 * step:7.0f} ms: "
            f"{100 * ours / step:.2f} %",
            flush=True,
        )
