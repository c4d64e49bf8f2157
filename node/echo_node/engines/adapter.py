"""LoRA adapters: read from a PEFT folder with suspicion, merged into a base model without drift.

Invariants: only JSON and safetensors are read; every key, shape and number is checked before a
weight changes; merged weights are always pristine + delta, never the last ones plus a difference,
so activating a version gives the same bits whatever was active before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora import Linear as LoraLinear
from safetensors import SafetensorError
from safetensors.torch import load_file

from echo_node.engines.adapter_config import ADAPTER_TENSORS, read_config
from echo_p2p.errors import EngineError

_NAME = "default"


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

    The model itself stays plain: PEFT's layers are made once to match the target modules and to
    compute each delta, and are then taken out of the forward path again.
    """

    def __init__(self, model: torch.nn.Module, shape: Mapping[str, Any]) -> None:
        config = LoraConfig(**shape, task_type="CAUSAL_LM")
        try:
            wrapped = get_peft_model(model, config)
        except ValueError as error:
            raise EngineError(f"this adapter does not fit the base model: {error}") from error
        inner = wrapped.base_model.model
        self._layers = {n: m for n, m in inner.named_modules() if isinstance(m, LoraLinear)}
        self.shape = shape
        self._pristine = {
            name: layer.get_base_layer().weight.detach().clone()
            for name, layer in self._layers.items()
        }
        wrapped.unload()

    def check(self, adapter: Version) -> None:
        """EngineError unless `merge` can take this version."""
        if not isinstance(adapter, Adapter) or adapter.shape != self.shape:
            raise EngineError("the adapter is of another shape than this run's earlier ones.")
        wanted = {key: weight.shape for key, weight in self._weights().items()}
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
        for key, weight in self._weights().items():
            weight.copy_(adapter.tensors[key])
        for name, layer in self._layers.items():
            merged = self._pristine[name] + layer.get_delta_weight(_NAME)
            layer.get_base_layer().weight.copy_(merged)

    @torch.no_grad()
    def restore(self) -> None:
        """Set the model's weights back to the pristine ones."""
        for name, layer in self._layers.items():
            layer.get_base_layer().weight.copy_(self._pristine[name])

    def _weights(self) -> dict[str, torch.Tensor]:
        """PEFT's LoRA weights by their names in an adapter file."""
        return {
            f"base_model.model.{name}.{kind}.weight": getattr(layer, kind)[_NAME].weight
            for name, layer in self._layers.items()
            for kind in ("lora_A", "lora_B")
        }


def shown(shape: torch.Size | None) -> str:
    """A tensor's shape, or that there is none, for people."""
    return "missing" if shape is None else " x ".join(map(str, shape))
