"""A PEFT adapter's config, read with suspicion and without PEFT: there are engines without torch.

Invariant: a field that changes what an adapter computes is either understood here, or must have the
value that changes nothing; a field that is not known at all is refused.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from echo_p2p.errors import EngineError

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_TENSORS = "adapter_model.safetensors"
MAX_RANK = 4096

_MAX_CONFIG_BYTES = 1 << 20
SHAPING: Mapping[str, Any] = {
    "r": 8, "lora_alpha": 8, "target_modules": None, "use_rslora": False,
}  # fmt: skip
"""What shapes an adapter, and PEFT's values where a config does not say."""
WITHOUT_EFFECT = (
    "base_model_name_or_path", "inference_mode", "init_lora_weights", "lora_dropout",
    "peft_version", "revision",
)  # fmt: skip
NEUTRAL: Mapping[str, Any] = {
    "task_type": "CAUSAL_LM", "peft_type": "LORA", "auto_mapping": None, "exclude_modules": None,
    "fan_in_fan_out": False, "bias": "none", "modules_to_save": None, "layers_to_transform": None,
    "layers_pattern": None, "rank_pattern": {}, "alpha_pattern": {}, "megatron_config": None,
    "megatron_core": "megatron.core", "trainable_token_indices": None, "loftq_config": {},
    "eva_config": None, "corda_config": None, "lora_ga_config": None, "use_dora": False,
    "velora_config": None, "alora_invocation_tokens": None, "use_qalora": False,
    "qalora_group_size": 16, "monteclora_config": None, "layer_replication": None,
    "lora_bias": False, "target_parameters": None, "use_bdlora": None, "arrow_config": None,
    "kasa_config": None, "ensure_weight_tying": False,
}  # fmt: skip
"""The other fields of PEFT 0.21, each with the value that changes nothing."""


def read_config(folder: Path) -> dict[str, Any]:
    """What shapes the adapter in a PEFT folder: the fields `SHAPING`, checked.

    EngineError says what is wrong with it, or not supported.
    """
    path = folder / ADAPTER_CONFIG
    found = _read(path)
    for key, value in found.items():
        if key in SHAPING or key in WITHOUT_EFFECT:
            continue
        if key not in NEUTRAL:
            raise EngineError(f"{path}: {key!r} is not a field of a LoRA adapter known here.")
        if value != NEUTRAL[key]:
            raise EngineError(f"{path}: {key} = {value!r} is not supported.")
    config = {key: found.get(key, default) for key, default in SHAPING.items()}
    targets = config["target_modules"]
    if not isinstance(targets, list) or not all(isinstance(t, str) for t in targets):
        raise EngineError(f"{path}: target_modules is not a list of names.")
    if type(config["r"]) is not int or not 1 <= config["r"] <= MAX_RANK:
        raise EngineError(f"{path}: r = {config['r']!r} is not a rank.")
    if type(config["lora_alpha"]) not in (int, float) or type(config["use_rslora"]) is not bool:
        raise EngineError(f"{path}: lora_alpha or use_rslora is of a wrong type.")
    return {**config, "target_modules": sorted(targets)}


def scale_of(shape: Mapping[str, Any]) -> float:
    """What the product B A is multiplied by: alpha / r, or alpha / sqrt(r) for rsLoRA."""
    rank: int = shape["r"]
    scale: float = shape["lora_alpha"] / (math.sqrt(rank) if shape["use_rslora"] else rank)
    return scale


def _read(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _MAX_CONFIG_BYTES:
            raise EngineError(f"{path} is over {_MAX_CONFIG_BYTES} bytes.")
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise EngineError(f"cannot read {path}: {error}.") from error
    if not isinstance(config, dict):
        raise EngineError(f"{path} is not a JSON object.")
    return config
