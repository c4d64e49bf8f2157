"""Which base models MLX computes as transformers does, and how their configs are told to it.

mlx-lm knows many architectures, but reads only some of a config: what it does not read it replaces
by a default, and computes something else without a word. An auditor would call that cheating. So a
base is taken only if its architecture and its kind of rotary embedding were compared with
transformers (tests/engines/test_mlx_architectures.py), and the rest is refused. Pure functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from echo_p2p.errors import EngineError

_PLAIN = frozenset({"default"})
_LLAMA = frozenset({"default", "linear", "llama3", "yarn"})
PROVEN: Mapping[str, frozenset[str]] = {
    "granite": _PLAIN,
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "olmo2": _PLAIN,
    "phi3": _PLAIN,
    "qwen2": _PLAIN | {"yarn"},
    "qwen3": _PLAIN | {"yarn"},
    "smollm3": _PLAIN,
}
"""Architectures (`model_type`) and their kinds of rotary embedding."""

_ACTIVATIONS = ("silu", "swish")
_FIX = "This node can take part with `--engine torch`."


def overrides(config: Mapping[str, Any]) -> dict[str, Any]:
    """What mlx-lm must be told beside a base's config; EngineError if the base is not proven.

    transformers 5 writes the parameters of the rotary embedding into one dictionary, of which most
    of mlx-lm's models read nothing.
    """
    architecture = config.get("model_type")
    if not isinstance(architecture, str) or architecture not in PROVEN:
        raise EngineError(
            f"MLX was not compared with transformers for the architecture {architecture!r}: "
            f"only {', '.join(sorted(PROVEN))}.",
            fix=_FIX,
        )
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise EngineError("the base's rotary embedding is not described by a dictionary.")
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in PROVEN[architecture]:
        raise EngineError(
            f"MLX was not compared with transformers for {architecture} with the rotary "
            f"embedding {kind!r}.",
            fix=_FIX,
        )
    for wrong, what in (
        (config.get("hidden_act", "silu") not in _ACTIVATIONS, "activation"),
        (_slides(config), "sliding attention"),
    ):
        if wrong:
            raise EngineError(f"MLX ignores this base's {what}.", fix=_FIX)
    extra = {
        key: rope[key]
        for key in ("rope_theta", "partial_rotary_factor")
        if key in rope and key not in config
    }
    return extra if kind == "default" else {**extra, "rope_scaling": dict(rope)}


def _slides(config: Mapping[str, Any]) -> bool:
    """Whether any layer attends to a window that is shorter than the context."""
    window = config.get("sliding_window")
    if not window or window >= config.get("max_position_embeddings", 0):
        return False
    kinds = config.get("layer_types")
    if kinds:
        return set(kinds) != {"full_attention"}
    return config.get("use_sliding_window", True) is not False
