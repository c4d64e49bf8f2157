"""Which engine: by name, or the best one for this machine. Imports only the one that is chosen."""

from __future__ import annotations

import importlib
import os
import platform
import sys
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

from echo_node.engines.base import Engine, Resources
from echo_p2p.errors import ConfigError, EngineError

if TYPE_CHECKING:
    from echo_node.engines.vllm_core import Options

AUTO = "auto"
NAMES = (AUTO, "torch", "vllm", "mlx")
_URLS = ("http://", "https://")


def check_name(name: str) -> None:
    """ConfigError unless `make_engine` knows this name."""
    if name not in NAMES and not name.startswith(_URLS):
        raise ConfigError(
            f"there is no engine {name!r}.",
            fix=f"Choose {', '.join(NAMES)}, or the address of a server: http://host:port.",
        )


def make_engine(
    name: str,
    *,
    max_sequences: int,
    threads: int,
    resources: Resources = Resources(),  # noqa: B008 - it is frozen
) -> Engine:
    """An engine, not loaded yet; EngineError if it cannot be had on this machine.

    Args:
        name: one of `NAMES`, or the address of a server.
        threads: CPU threads; 0 leaves the engine's default.
        resources: which part of the machine it may use; a server uses what it was given.
    """
    check_name(name)
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # "cuda:1" is the card that NVML numbers so
    os.environ["HF_HUB_OFFLINE"] = "1"  # whatever a snapshot asks for
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    if name.startswith(_URLS):
        from echo_node.engines.openai import ServerEngine

        return ServerEngine(name, max_sequences=max_sequences)
    if name == "mlx" or (name == AUTO and mlx_is_best()):
        return _mlx(max_sequences=max_sequences, resources=resources)
    if name == "vllm" or (name == AUTO and _vllm_is_best()):
        return _vllm(max_sequences=max_sequences, threads=threads, resources=resources)
    return _torch(max_sequences=max_sequences, threads=threads, resources=resources)


def import_engine(name: str) -> None:
    """Import what `make_engine` will need, ahead of time; raises whatever the import does."""
    if name == "mlx" or (name == AUTO and mlx_is_best()):
        importlib.import_module("echo_node.engines.mlx")
    elif name in (AUTO, "torch"):
        importlib.import_module("echo_node.engines.torch")
        importlib.import_module("transformers.modeling_utils")  # most of any model's own import


def _mlx(*, max_sequences: int, resources: Resources) -> Engine:
    try:
        from echo_node.engines.mlx import MlxEngine
    except (ImportError, OSError, ValueError) as error:  # mlx-lm raises the limit of open files
        raise EngineError(
            f"MLX cannot be used here: {error}.", fix="Install it: pip install 'echo-p2p[mac]'."
        ) from error
    return MlxEngine(max_sequences=max_sequences, memory_bytes=resources.memory)


def mlx_is_best() -> bool:
    """On an Apple chip, where it is installed."""
    apple = (sys.platform, platform.machine()) == ("darwin", "arm64")
    return apple and find_spec("mlx_lm") is not None


def _vllm_is_best() -> bool:
    """On a card, where it is installed."""
    if find_spec("vllm") is None:
        return False
    import torch

    return torch.cuda.is_available()


def _vllm(*, max_sequences: int, threads: int, resources: Resources) -> Engine:
    if find_spec("vllm") is None:
        raise EngineError("vLLM is not installed.", fix="Run: pip install 'echo-p2p[cuda]'")
    from echo_node.engines.vllm import VllmEngine

    _show_only(resources.device)
    return VllmEngine(vllm_options(resources, max_sequences=max_sequences, threads=threads))


def vllm_options(resources: Resources, *, max_sequences: int, threads: int) -> Options:
    """What vLLM is told of the part of the machine that it may use."""
    from echo_node.engines.vllm_core import Options

    options = Options(
        max_sequences=max_sequences,
        threads=threads,
        context=resources.context,
        tensor_parallel=resources.tensor_parallel,
    )
    if resources.memory_share is None:
        return options
    return replace(options, memory_share=resources.memory_share)


def _show_only(device: str) -> None:
    """Hide the other cards from this process: vLLM takes the first that it sees."""
    kind, _, indices = device.partition(":")
    if kind != "cuda" or not indices:
        return
    names, shown = indices.split(","), os.environ.get("CUDA_VISIBLE_DEVICES")
    if shown is not None:
        names = [name for index in names for name in shown.split(",")[int(index) :][:1]]
    if names:  # else it was done for an engine before this one
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(names)


def _torch(*, max_sequences: int, threads: int, resources: Resources) -> Engine:
    import torch

    from echo_node.engines.torch import TorchEngine

    if threads:
        torch.set_num_threads(threads)
    return TorchEngine(
        max_sequences=max_sequences,
        device=resources.device or None,
        memory_share=resources.memory_share,
    )
