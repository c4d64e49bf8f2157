"""A PEFT adapter in the names and shapes of mlx-lm. Pure: for any arrays that have `shape` and `T`.

PEFT keeps `A [r, in]` and `B [out, r]` of a layer and adds `scale * B (A x)`; mlx-lm keeps
`lora_a [in, r]` and `lora_b [r, out]` and adds `scale * (x lora_a) lora_b`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

from echo_p2p.errors import EngineError

_PREFIX = "base_model.model."
_KINDS = {".lora_A.weight": "lora_a", ".lora_B.weight": "lora_b"}


class Array(Protocol):
    """What is asked of an array."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def T(self) -> Any: ...  # noqa: N802


A = TypeVar("A", bound=Array)


def to_mlx(tensors: Mapping[str, A], rank: int) -> dict[str, dict[str, A]]:
    """For each layer's name in the base, its `lora_a` and `lora_b`.

    EngineError if a tensor is not one of a LoRA layer of this rank, or one of a pair is missing.
    """
    layers: dict[str, dict[str, A]] = {}
    for key, tensor in tensors.items():
        end = next((end for end in _KINDS if key.endswith(end)), None)
        if end is None or not key.startswith(_PREFIX):
            raise EngineError(f"the adapter's {key} is not a LoRA weight of a linear layer.")
        kind = _KINDS[end]
        if len(tensor.shape) != 2 or tensor.shape[0 if kind == "lora_a" else 1] != rank:
            shape = " x ".join(map(str, tensor.shape))
            raise EngineError(f"the adapter's {key} is {shape}, and not of rank {rank}.")
        layers.setdefault(key.removeprefix(_PREFIX).removesuffix(end), {})[kind] = tensor.T
    if not layers:
        raise EngineError("the adapter has no weights.")
    for name, pair in layers.items():
        if len(pair) != 2:
            raise EngineError(f"the adapter's {name} has only {', '.join(pair)}.")
    return layers
