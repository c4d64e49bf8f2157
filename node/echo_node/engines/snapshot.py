"""Folders of weights, looked at before any engine opens them: base snapshots and versions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from echo_node.engines.adapter_config import ADAPTER_CONFIG
from echo_p2p.errors import EngineError

WEIGHTS = "model.safetensors"
"""The file of a version that is a whole model; only it is read."""


def check_base(base: Path) -> dict[str, Any]:
    """The config of a snapshot; EngineError if it brings code, or weights in a form that could."""
    try:
        config = json.loads((base / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise EngineError(f"cannot read {base / 'config.json'}: {error}.") from error
    if not isinstance(config, dict):
        raise EngineError(f"{base / 'config.json'} is not a JSON object.")
    for key in ("auto_map", "model_file", "quantization", "quantization_config"):
        if config.get(key):
            raise EngineError(f"the base model in {base} asks for {key}, which is not supported.")
    if not any(base.glob("*.safetensors")):
        raise EngineError(f"the base model in {base} has no safetensors weights.")
    return config


def is_whole_model(folder: Path) -> bool:
    """Whether a version's folder holds a whole model's weights, and no adapter."""
    return (folder / WEIGHTS).is_file() and not (folder / ADAPTER_CONFIG).exists()
