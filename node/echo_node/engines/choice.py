"""Which engine: by name, or the best one for this machine. Imports only the one that is chosen."""

from __future__ import annotations

import os

from echo_node.engines.base import Engine
from echo_p2p.errors import ConfigError

AUTO = "auto"
NAMES = (AUTO, "torch")


def check_name(name: str) -> None:
    """ConfigError unless `make_engine` knows this name."""
    if name not in NAMES:
        raise ConfigError(f"there is no engine {name!r}.", fix=f"Choose {' or '.join(NAMES)}.")


def make_engine(name: str, *, max_sequences: int, threads: int) -> Engine:
    """An engine, not loaded yet; EngineError if it cannot be had on this machine.

    Args:
        name: one of `NAMES`.
        threads: CPU threads; 0 leaves the engine's default.
    """
    check_name(name)
    os.environ["HF_HUB_OFFLINE"] = "1"  # whatever a snapshot asks for
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    return _torch(max_sequences=max_sequences, threads=threads)


def _torch(*, max_sequences: int, threads: int) -> Engine:
    import torch

    from echo_node.engines.torch import TorchEngine

    if threads:
        torch.set_num_threads(threads)
    return TorchEngine(max_sequences=max_sequences)
