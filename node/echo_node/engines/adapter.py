"""LoRA adapters: read from a PEFT folder with suspicion, merged into a base model without drift.

Invariants: only JSON and safetensors are read; every key, shape and number is checked before a
weight changes; merged weights are always pristine + delta, never the last ones plus a difference,
so activating a version gives the same bits whatever was active before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from echo_node.engines.adapter_config import ADAPTER_TENSORS, read_config
from echo_p2p.errors import EngineError


@dataclass(frozen=True)
class Adapter:
    """The content of a PEFT adapter folder. `shape` is what must not change within a run."""

    shape: Mapping[str, Any]
    tensors: Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Weights:
    """All weights of a model, by name: what a version is where no adapter is trained."""

    tensors: Mapping[str, torch.Tensor]


Version = Adapter | Weights


def read_adapter(folder: Path) -> Adapter:
    """Read and check a PEFT adapter folder; EngineError says what is wrong with it."""
    return Adapter(read_config(folder), read_tensors(folder, ADAPTER_TENSORS))


def read_tensors(folder: Path, name: str) -> dict[str, torch.Tensor]:
    """The tensors of a safetensors file; EngineError unless all are finite numbers."""
    try:
        tensors: dict[str, torch.Tensor] = load_file(folder / name)
    except (OSError, SafetensorError) as error:
        raise EngineError(f"cannot read the adapter in {folder}: {error}.") from error
    for key, tensor in tensors.items():
        if not tensor.is_floating_point() or not bool(torch.isfinite(tensor).all()):
            raise EngineError(f"the adapter in {folder} has a non-finite number in {key}.")
    return tensors


class Merger:
    """Merges one adapter after another, all of one shape, into a base model.

    The delta of a layer is what PEFT computes for it, in float32 and to the last bit: B @ A * scale
    with a scale of alpha / r, or alpha / sqrt(r) for rank-stabilised adapters. PEFT itself is not
    imported: it takes as long as everything else of an engine's start.
    """

    def __init__(self, model: torch.nn.Module, shape: Mapping[str, Any]) -> None:
        self._layers = _targets(model, shape["target_modules"])
        self.shape = shape
        self._rank = int(shape["r"])
        rank = self._rank**0.5 if shape["use_rslora"] else self._rank
        self._scale = shape["lora_alpha"] / rank
        self._pristine = {
            name: layer.weight.detach().clone() for name, layer in self._layers.items()
        }

    def check(self, adapter: Version) -> None:
        """EngineError unless `merge` can take this version."""
        if not isinstance(adapter, Adapter) or adapter.shape != self.shape:
            raise EngineError("the adapter is of another shape than this run's earlier ones.")
        wanted = self._shapes()
        found = {key: tensor.shape for key, tensor in adapter.tensors.items()}
        for key in sorted(wanted.keys() | found.keys()):
            if wanted.get(key) != found.get(key):
                raise EngineError(
                    f"the adapter's {key} is {shown(found.get(key))}, "
                    f"where the base model takes {shown(wanted.get(key))}."
                )

    @torch.no_grad()
    def merge(self, adapter: Version) -> None:
        """Set the model's weights to pristine + this adapter's delta; it was checked."""
        for name, layer in self._layers.items():
            first, second = (
                adapter.tensors[_key(name, kind)].to(layer.weight.device, torch.float32)
                for kind in ("lora_A", "lora_B")
            )
            layer.weight.copy_(self._pristine[name] + (second @ first) * self._scale)

    @torch.no_grad()
    def restore(self) -> None:
        """Set the model's weights back to the pristine ones."""
        for name, layer in self._layers.items():
            layer.weight.copy_(self._pristine[name])

    def _shapes(self) -> dict[str, torch.Size]:
        """Shapes of the adapter's weights by their names in its file."""
        shapes = {}
        for name, layer in self._layers.items():
            shapes[_key(name, "lora_A")] = torch.Size((self._rank, layer.in_features))
            shapes[_key(name, "lora_B")] = torch.Size((layer.out_features, self._rank))
        return shapes


def _key(layer: str, kind: str) -> str:
    return f"base_model.model.{layer}.{kind}.weight"


def _targets(model: torch.nn.Module, names: Sequence[str]) -> dict[str, torch.nn.Linear]:
    """The linear layers that are meant: by their whole name, or its end after a dot, as in PEFT."""
    found: dict[str, torch.nn.Linear] = {}
    for name, module in model.named_modules():
        if any(name == wanted or name.endswith(f".{wanted}") for wanted in names):
            if not isinstance(module, torch.nn.Linear):
                raise EngineError(
                    f"this adapter does not fit the base model: {name} is no linear layer."
                )
            found[name] = module
    if not found:
        raise EngineError(
            f"this adapter does not fit the base model: it has none of {', '.join(names)}."
        )
    return found


def shown(shape: Sequence[int] | None) -> str:
    """A tensor's shape, or that there is none, for people."""
    return "missing" if shape is None else " x ".join(map(str, shape))
