"""Which engine: by name, or the best one for this machine. Imports only the one that is chosen."""

from __future__ import annotations

import importlib
import os
import platform
import sys
from importlib.util import find_spec

from echo_node.engines.base import Engine
from echo_p2p.errors import ConfigError, EngineError

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


def make_engine(name: str, *, max_sequences: int, threads: int) -> Engine:
    """An engine, not loaded yet; EngineError if it cannot be had on this machine.

    Args:
        name: one of `NAMES`, or the address of a server.
        threads: CPU threads; 0 leaves the engine's default.
    """
    check_name(name)
    os.environ["HF_HUB_OFFLINE"] = "1"  # whatever a snapshot asks for
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    if name.startswith(_URLS):
        from echo_node.engines.openai import ServerEngine

        return ServerEngine(name, max_sequences=max_sequences)
    if name == "mlx" or (name == AUTO and mlx_is_best()):
        return _mlx(max_sequences=max_sequences)
    if name == "vllm" or (name == AUTO and _vllm_is_best()):
        return _vllm(max_sequences=max_sequences, threads=threads)
    return _torch(max_sequences=max_sequences, threads=threads)


def import_engine(name: str) -> None:
    """Import what `make_engine` will need, ahead of time; raises whatever the import does."""
    if name == "mlx" or (name == AUTO and mlx_is_best()):
        importlib.import_module("echo_node.engines.mlx")
    elif name in (AUTO, "torch"):
        importlib.import_module("echo_node.engines.torch")
        importlib.import_module("transformers.modeling_utils")  # most of any model's own import


def _mlx(*, max_sequences: int) -> Engine:
    try:
        from echo_node.engines.mlx import MlxEngine
    except (ImportError, OSError, ValueError) as error:  # mlx-lm raises the limit of open files
        raise EngineError(
            f"MLX cannot be used here: {error}.", fix="Install it: pip install 'echo-p2p[mac]'."
        ) from error
    return MlxEngine(max_sequences=max_sequences)


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


def _vllm(*, max_sequences: int, threads: int) -> Engine:
    if find_spec("vllm") is None:
        raise EngineError("vLLM is not installed.", fix="Run: pip install 'echo-p2p[cuda]'")
    from echo_node.engines.vllm import Options, VllmEngine

    return VllmEngine(Options(max_sequences=max_sequences, threads=threads))


def _torch(*, max_sequences: int, threads: int) -> Engine:
    import torch

    from echo_node.engines.torch import TorchEngine

    if threads:
        torch.set_num_threads(threads)
    return TorchEngine(max_sequences=max_sequences)
