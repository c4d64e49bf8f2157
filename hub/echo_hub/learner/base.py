"""Loading a base model's snapshot: without any code of its own, as it is or in 4 bits."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, PreTrainedModel
from transformers.utils import logging as transformers_logging

from echo_p2p.errors import ConfigError

Dtype = Literal["float32", "bfloat16"]
Quantisation = Literal["none", "nf4"]

_NEEDED = ("bitsandbytes", "accelerate")


def load_base(
    base: Path, dtype: Dtype, quantisation: Quantisation = "none", *, device: str = "cpu"
) -> PreTrainedModel:
    """A snapshot's model, its weights in `dtype`, whatever they were saved in.

    With `nf4` the linear layers but the output layer are 4-bit NormalFloats with doubly quantised
    scales, on `device` at once, and compute in `dtype` (Dettmers et al. 2023, arXiv 2305.14314).

    Raises:
        ConfigError: the snapshot cannot be loaded, or there is nothing to quantise with.
    """
    transformers_logging.disable_progress_bar()
    how: dict[str, Any] = {}
    if quantisation == "nf4":
        _check_installed()
        how["device_map"] = {"": device}
        how["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=getattr(torch, dtype),
        )
    try:
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            base,
            local_files_only=True,
            use_safetensors=True,
            attn_implementation="sdpa",  # never one that the snapshot names
            dtype=getattr(torch, dtype),
            **how,
        )
    except (OSError, ValueError, SafetensorError) as error:
        raise ConfigError(
            f"cannot load a base model from {base}: {error}",
            fix="base.path must be a folder with config.json and safetensors files.",
        ) from error
    return model


def _check_installed() -> None:
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            f'base.quantisation = "nf4" needs {" and ".join(missing)}, which is not installed.',
            fix=f'Run: pip install {" ".join(missing)}; or set it to "none".',
        )
