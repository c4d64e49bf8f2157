"""A base model in MLX, and the versions of its policy that it can wear.

Invariants: only JSON and safetensors are read; a version is checked whole before any weight
changes; a change of version replaces references to arrays and copies nothing, so it costs no time
worth naming, and work that was already begun keeps the arrays it began with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_unflatten
from safetensors import SafetensorError, safe_open

from echo_node.engines.adapter_config import ADAPTER_TENSORS, read_config, scale_of
from echo_node.engines.base import Dtype
from echo_node.engines.mlx_adapter import to_mlx
from echo_node.engines.mlx_config import overrides
from echo_node.engines.snapshot import WEIGHTS, check_base, is_whole_model
from echo_p2p.errors import EngineError

_DTYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16}


@dataclass(frozen=True)
class Policy:
    """A version: the arrays, by their names in the model, that make it what it is.

    `shape` is what an adapter must have in common with the others; None for a whole model.
    """

    arrays: Mapping[str, mx.array]
    shape: Mapping[str, Any] | None

    def check_like(self, other: Policy) -> None:
        """EngineError unless both can be versions of one run."""
        if (self.shape is None) != (other.shape is None):
            raise EngineError("a run's versions are either adapters or whole models, not both.")
        if self.shape != other.shape or self.arrays.keys() != other.arrays.keys():
            raise EngineError("the adapter is of another shape than this run's earlier ones.")


class AdaptedLinear(nn.Module):  # type: ignore[misc]
    """A linear layer and what an adapter adds to it; `lora_b` has the adapter's scale in it."""

    def __init__(self, linear: nn.Linear, rank: int) -> None:
        super().__init__()
        outputs, inputs = linear.weight.shape
        self.linear = linear
        self.lora_a = mx.zeros((inputs, rank), dtype=linear.weight.dtype)
        self.lora_b = mx.zeros((rank, outputs), dtype=linear.weight.dtype)

    def __call__(self, x: mx.array) -> mx.array:
        return mx.addmm(self.linear(x), x @ self.lora_a, self.lora_b)


class MlxModel:
    """A loaded base; EngineError says why a snapshot cannot be one."""

    def __init__(self, base: Path, dtype: Dtype) -> None:
        config = check_base(base)
        extra = overrides(config)
        self._dtype = _DTYPES[dtype]
        try:
            self.module = _load(base, extra, self._dtype)
        except Exception as error:  # a false config raises whatever it likes
            raise EngineError(f"cannot load the base model in {base}: {error}") from error
        self.config: dict[str, Any] = config
        self.vocab_size: int = config["vocab_size"]
        self.context: int = config["max_position_embeddings"]
        self._base = dict(tree_flatten(self.module.parameters()))
        self._plain: dict[str, nn.Linear] = {}  # the layers that are adapted now
        self._worn: Policy | None = None

    @property
    def token_bytes(self) -> int:
        """Bytes of the keys and values of one token."""
        layers: int = self.config["num_hidden_layers"]
        heads: int = self.config.get("num_key_value_heads") or self.config["num_attention_heads"]
        width: int = (
            self.config.get("head_dim")
            or self.config["hidden_size"] // self.config["num_attention_heads"]
        )
        return 2 * layers * heads * width * int(self._dtype.size)

    # --- versions -----------------------------------------------------------------------------

    def read(self, folder: Path) -> Policy:
        """Read a version's folder; EngineError says what is wrong with it, or does not fit."""
        if is_whole_model(folder):
            return Policy(self._read_weights(folder), None)
        shape = read_config(folder)
        pairs = to_mlx(_arrays(folder / ADAPTER_TENSORS), shape["r"])
        self._check_pairs(pairs)
        scale = scale_of(shape)
        arrays = {}
        for name, pair in pairs.items():
            arrays[f"{name}.lora_a"] = pair["lora_a"].astype(self._dtype)
            arrays[f"{name}.lora_b"] = (pair["lora_b"] * scale).astype(self._dtype)
        mx.eval(arrays)
        return Policy(arrays, shape)

    def _check_pairs(self, pairs: Mapping[str, Mapping[str, mx.array]]) -> None:
        modules = dict(self.module.named_modules())
        for name, pair in pairs.items():
            layer: Any = self._plain.get(name) or modules.get(name)
            if type(layer) is not nn.Linear:
                raise EngineError(f"the base model has no linear layer {name}.")
            found = (pair["lora_b"].shape[1], pair["lora_a"].shape[0])
            if found != layer.weight.shape:
                raise EngineError(
                    f"the adapter's {name} is for {found[1]} inputs and {found[0]} outputs, where "
                    f"the base model has {layer.weight.shape[1]} and {layer.weight.shape[0]}."
                )

    def _read_weights(self, folder: Path) -> dict[str, mx.array]:
        found = _arrays(folder / WEIGHTS)
        if hasattr(self.module, "sanitize"):
            found = self.module.sanitize(found)
        for name in sorted(self._base.keys() | found.keys()):
            ours, theirs = (_shown(arrays.get(name)) for arrays in (self._base, found))
            if ours != theirs:
                raise EngineError(
                    f"the version's {name} is {theirs}, where the base model has {ours}."
                )
        weights = {name: array.astype(self._dtype) for name, array in found.items()}
        mx.eval(weights)
        return weights

    def wear(self, policy: Policy | None) -> None:
        """Compute as this version from now on; None is the base itself, as it was loaded."""
        if policy is self._worn:
            return
        if policy is None or policy.shape is None:
            self._take_off()
        else:
            self._put_on(policy)
        arrays = self._base if policy is None else policy.arrays
        self.module.load_weights(list(arrays.items()), strict=False)
        self._worn = policy

    def _put_on(self, policy: Policy) -> None:
        if self._plain:
            return
        assert policy.shape is not None
        modules = dict(self.module.named_modules())
        names = {name.rpartition(".")[0] for name in policy.arrays}
        self._plain = {name: modules[name] for name in names}
        self._replace({n: AdaptedLinear(x, policy.shape["r"]) for n, x in self._plain.items()})

    def _take_off(self) -> None:
        self._replace(self._plain)
        self._plain = {}

    def _replace(self, layers: Mapping[str, nn.Module]) -> None:
        if layers:
            self.module.update_modules(tree_unflatten(list(layers.items())))


def _load(base: Path, extra: Mapping[str, Any], dtype: Any) -> nn.Module:
    from mlx_lm.utils import load_model

    module, _ = load_model(base, lazy=True, model_config=dict(extra))
    module.set_dtype(dtype)
    mx.eval(module.parameters())
    return module


def _arrays(path: Path) -> dict[str, mx.array]:
    """The arrays of a safetensors file; EngineError unless all are finite numbers."""
    try:
        with safe_open(path, framework="np"):  # looks at the file more closely than MLX does
            arrays: dict[str, mx.array] = mx.load(str(path))
    except (OSError, SafetensorError, RuntimeError, ValueError) as error:
        raise EngineError(f"cannot read {path}: {error}.") from error
    finite = {
        name: mx.isfinite(array).all()
        for name, array in arrays.items()
        if mx.issubdtype(array.dtype, mx.floating)
    }
    mx.eval(finite)
    for name in arrays:
        if name not in finite or not finite[name].item():
            raise EngineError(f"{path} has a non-finite number in {name}.")
    return arrays


def _shown(array: mx.array | None) -> str:
    return "missing" if array is None else " x ".join(map(str, array.shape))
