"""The shape of a base model, from its config.json: what its memory follows from. Pure.

Known are the layers of Llama and its kin: RMSNorm, rotary attention with grouped keys, gated MLP,
dense or of experts. Parameters are counted as those models have them, exactly; of other
architectures the count is near.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from echo_node.engines.mlx_config import overrides
from echo_p2p.errors import ConfigError, EngineError

MAX_CONFIG_BYTES = 1 << 20
_LARGEST = 1 << 24  # of one number in a config; what is larger is no model's


@dataclass(frozen=True)
class Shape:
    """Sizes of a model. `parameters` counts all its numbers, `embedded` those outside its layers.

    `head` is the width of one attention head, `positions` the longest text it can read, in tokens.
    `no_mlx`: why MLX must not compute it; empty if it may.
    """

    vocabulary: int
    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    head: int
    positions: int
    parameters: int
    embedded: int
    no_mlx: str = ""

    @property
    def in_layers(self) -> int:
        """Parameters of the layers: nearly all of them are of linear ones."""
        return self.parameters - self.embedded


def read_shape(path: Path) -> Shape:
    """The shape in a config.json, or in a folder that holds one; ConfigError if there is none."""
    file = path / "config.json" if path.is_dir() else path
    try:
        if file.stat().st_size > MAX_CONFIG_BYTES:
            raise ConfigError(f"{file} is over {MAX_CONFIG_BYTES} bytes; this is no such file.")
        config = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file} is not valid JSON: {error}.") from error
    return shape_of(config, source=str(file))


def shape_of(config: Any, *, source: str) -> Shape:
    """The shape that a config describes; ConfigError names what it lacks."""
    if isinstance(config, dict) and isinstance(config.get("text_config"), dict):
        config = config["text_config"]
    if not isinstance(config, dict):
        raise ConfigError(f"{source} is not a JSON object.")
    read = _Reader(config, source)
    hidden, layers = read("hidden_size"), read("num_hidden_layers")
    heads, vocabulary = read("num_attention_heads"), read("vocab_size")
    kv_heads = read("num_key_value_heads", heads)
    head = read("head_dim", max(1, hidden // heads))
    inner = read("intermediate_size", 4 * hidden)
    tied = bool(config.get("tie_word_embeddings", False))
    embedded = vocabulary * hidden * (1 if tied else 2) + hidden
    attention = 2 * hidden * head * (heads + kv_heads) + _biases(
        config, hidden, head, heads, kv_heads
    )
    layer = attention + _mlp(read, config, hidden, inner) + 2 * hidden
    return Shape(
        vocabulary=vocabulary,
        hidden=hidden,
        inner=inner,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head=head,
        positions=read("max_position_embeddings", 2048),
        parameters=embedded + layers * layer,
        embedded=embedded,
        no_mlx=_why_not_mlx(config),
    )


def _why_not_mlx(config: Mapping[str, Any]) -> str:
    try:
        overrides(config)
    except EngineError as error:
        return error.message
    return ""


class _Reader:
    """Whole numbers of a config, bounded."""

    def __init__(self, config: Mapping[str, Any], source: str) -> None:
        self._config = config
        self._source = source

    def __call__(self, key: str, default: int | None = None) -> int:
        value = self._config.get(key)
        if value is None:
            if default is None:
                raise ConfigError(
                    f"{self._source} does not say {key}: its architecture is not known here."
                )
            return default
        if type(value) is not int or not 1 <= value <= _LARGEST:
            raise ConfigError(f"{self._source}: {key} = {value!r} is no size of a model.")
        return value


def _biases(config: Mapping[str, Any], hidden: int, head: int, heads: int, kv_heads: int) -> int:
    """Biases and norms inside one layer's attention."""
    kind = config.get("model_type")
    projected = head * (heads + 2 * kv_heads)
    if kind == "qwen2":
        return projected
    count = 2 * head if kind in ("qwen3", "qwen3_moe") else 0
    return count + (projected + hidden if config.get("attention_bias") else 0)


def _mlp(read: _Reader, config: Mapping[str, Any], hidden: int, inner: int) -> int:
    """Parameters of one layer's MLP, or of all its experts and their router."""
    experts = config.get("num_experts") or config.get("num_local_experts")
    if experts is None:
        return 3 * hidden * inner + (2 * inner + hidden if config.get("mlp_bias") else 0)
    key = "num_experts" if config.get("num_experts") else "num_local_experts"
    return read(key) * (3 * hidden * read("moe_intermediate_size", inner) + hidden)
