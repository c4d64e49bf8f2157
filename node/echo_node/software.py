"""Which engines are installed, without importing any of them."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys

from echo_node.fit import Software


def look(*, system: str = sys.platform) -> Software:
    """What this Python has."""
    return Software(
        torch=torch_devices(version_of("torch"), system),
        vllm=importlib.util.find_spec("vllm") is not None,
        mlx=importlib.util.find_spec("mlx_lm") is not None,
    )


def torch_devices(version: str, system: str) -> frozenset[str]:
    """What a build of torch computes on, by its version; its plain Linux wheels bring CUDA."""
    if not version:
        return frozenset()
    build = version.partition("+")[2]
    if system == "darwin":
        return frozenset({"cpu", "mps"})
    if build.startswith("rocm"):
        return frozenset({"cpu", "rocm"})
    if build.startswith("cu") or (not build and system == "linux"):
        return frozenset({"cpu", "cuda"})
    return frozenset({"cpu"})


def version_of(name: str) -> str:
    """The release of a distribution; empty if it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""
