"""Whether a version's files fit a base model, told from the headers of its weights.

vLLM stacks and renames layers as it loads, so its own model cannot say what an adapter should look
like. The snapshot can: every name and shape of a version is checked against it before vLLM sees the
version.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors import safe_open

from echo_node.engines.adapter import Adapter, Version, Weights, shown
from echo_p2p.errors import EngineError

Shapes = Mapping[str, tuple[int, ...]]


def shapes_of(base: Path) -> Shapes:
    """Name and shape of every weight of a snapshot."""
    found: dict[str, tuple[int, ...]] = {}
    for path in sorted(base.glob("*.safetensors")):
        with safe_open(path, framework="numpy") as file:
            for name in file.keys():  # noqa: SIM118 - not a mapping
                found[name] = tuple(file.get_slice(name).get_shape())
    return found


def check_fits(version: Version, base: Shapes) -> None:
    """EngineError unless a version has exactly the weights, of the shapes, that the base takes."""
    found = {name: tuple(tensor.shape) for name, tensor in version.tensors.items()}
    wanted = dict(base) if isinstance(version, Weights) else _wanted_of(version, base)
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name) != found.get(name):
            raise EngineError(
                f"the version's {name} is {shown(found.get(name))}, "
                f"where the base model takes {shown(wanted.get(name))}."
            )


def rank_of(version: Version) -> int:
    """Rank of an adapter; 0 of a whole model."""
    return int(version.shape["r"]) if isinstance(version, Adapter) else 0


def _wanted_of(adapter: Adapter, base: Shapes) -> dict[str, tuple[int, ...]]:
    rank, targets = rank_of(adapter), adapter.shape["target_modules"]
    wanted: dict[str, tuple[int, ...]] = {}
    for name, shape in base.items():
        module = name.removesuffix(".weight")
        if module == name or len(shape) != 2:
            continue
        if any(module == target or module.endswith(f".{target}") for target in targets):
            wanted[f"base_model.model.{module}.lora_A.weight"] = (rank, shape[1])
            wanted[f"base_model.model.{module}.lora_B.weight"] = (shape[0], rank)
    if not wanted:
        raise EngineError(f"the adapter's modules {', '.join(targets)} are not in the base model.")
    return wanted
