"""Versions that are whole models: read from a folder with suspicion, copied into the base model.

The runs of small models may train every weight. Such a version is a folder with `model.safetensors`
and no adapter; only that file is read. Invariants: every name, shape and number is checked before a
weight changes; all weights are replaced, so that activating a version gives the same bits whatever
was active before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from echo_node.engines.adapter import Version, Weights, read_adapter, read_tensors, shown
from echo_node.engines.snapshot import WEIGHTS, is_whole_model
from echo_p2p.errors import EngineError


def read_version(folder: Path) -> Version:
    """Read and check the folder of a version; EngineError says what is wrong with it."""
    if is_whole_model(folder):
        return Weights(read_tensors(folder, WEIGHTS))
    return read_adapter(folder)


class Replacer:
    """Makes one whole model after another the weights of the base model that was loaded."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._weights = dict(model.named_parameters())
        self._pristine = {name: one.detach().clone() for name, one in self._weights.items()}

    def check(self, version: Version) -> None:
        """EngineError unless `merge` can take this version."""
        if not isinstance(version, Weights):
            raise EngineError("an adapter came where this run's earlier versions are whole models.")
        found = {name: tensor.shape for name, tensor in version.tensors.items()}
        for name in sorted(self._weights.keys() | found.keys()):
            wanted = self._weights[name].shape if name in self._weights else None
            if wanted != found.get(name):
                raise EngineError(
                    f"the version's {name} is {shown(found.get(name))}, "
                    f"where the base model takes {shown(wanted)}."
                )

    def merge(self, version: Version) -> None:
        """Set the model's weights to this version's; it was checked."""
        self._set(version.tensors)

    def restore(self) -> None:
        """Set the model's weights back to the pristine ones."""
        self._set(self._pristine)

    @torch.no_grad()
    def _set(self, tensors: Mapping[str, torch.Tensor]) -> None:
        for name, weight in self._weights.items():
            weight.copy_(tensors[name])
