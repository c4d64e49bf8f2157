"""NVIDIA cards, through NVML (nvidia-ml-py), which the driver brings.

Calls: docs.nvidia.com/deploy/nvml-api, "Device Queries". Nothing of CUDA is initialised, so no
memory of a card is taken by looking.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from echo_node.hardware.base import Accelerator, Found

_VENDOR = "0x10de"
_PCI = Path("/sys/bus/pci/devices")
_RESTART = "Restart the computer: the NVIDIA driver was updated, and the old one is still running."


def look(
    library: Any = None, *, environment: Mapping[str, str] = os.environ, pci: Path = _PCI
) -> Found:
    """The cards that NVML lists and CUDA_VISIBLE_DEVICES does not hide; `library` is for tests."""
    if library is None and importlib.util.find_spec("pynvml") is None:
        return Found()  # not installed on Macs
    nvml = importlib.import_module("pynvml") if library is None else library
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return Found(problems=_why_not(nvml, error, has_card=_has_card(pci)))
    try:
        driver = _text(nvml.nvmlSystemGetDriverVersion())
        cards, problems = [], []
        for index in range(nvml.nvmlDeviceGetCount()):
            if not _visible(index, environment):
                continue
            try:
                cards.append(_card(nvml, nvml.nvmlDeviceGetHandleByIndex(index), driver))
            except nvml.NVMLError as error:  # one lost card does not hide the others
                problems.append(
                    f"NVIDIA card {index} does not answer ({error}). Restart the computer; "
                    "if it comes back, the card, its power or its cooling may be at fault."
                )
        return Found(tuple(cards), tuple(problems))
    except nvml.NVMLError as error:
        return Found(problems=(f"the NVIDIA driver does not answer: {error}. {_RESTART}",))
    finally:
        nvml.nvmlShutdown()


def _card(nvml: Any, handle: Any, driver: str) -> Accelerator:
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        total, free, unified = int(memory.total), int(memory.free), False
    except nvml.NVMLError:  # chips that share the machine's RAM have no memory of their own
        ram = psutil.virtual_memory()
        total, free, unified = int(ram.total), int(ram.available), True
    return Accelerator(
        kind="cuda",
        name=_text(nvml.nvmlDeviceGetName(handle)),
        memory=total,
        free=free,
        driver=driver,
        capability=f"{major}.{minor}",
        unified=unified,
    )


def _why_not(nvml: Any, error: Any, *, has_card: bool) -> tuple[str, ...]:
    """What is out of order; nothing where there is no card to drive."""
    if getattr(error, "value", None) == nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
        return (f"the NVIDIA driver and its library are of two versions. {_RESTART}",)
    if not has_card:
        return ()
    return (
        f"an NVIDIA card is here, but its driver does not work ({error}). "
        "Install NVIDIA's driver for it and restart the computer.",
    )


def _has_card(pci: Path) -> bool:
    """Whether Linux lists a display controller of NVIDIA's."""
    try:
        for device in pci.iterdir():
            vendor = (device / "vendor").read_text().strip()
            if vendor == _VENDOR and (device / "class").read_text().startswith("0x03"):
                return True
    except OSError:
        return False
    return False


def _visible(index: int, environment: Mapping[str, str]) -> bool:
    """Whether CUDA_VISIBLE_DEVICES leaves a card; names other than numbers are not judged."""
    listed = environment.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return True
    names = [name.strip() for name in listed.split(",")]
    return str(index) in names or any(name.startswith(("GPU-", "MIG-")) for name in names)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
