"""What the learner runs on: whether a device can be used, and how much memory it has."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from echo_p2p.errors import ConfigError

_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


def check_device(name: str) -> None:
    """ConfigError unless torch can compute on this device."""
    try:
        torch.zeros(1, device=name).item()
    except (RuntimeError, AssertionError, ImportError) as error:  # torch has no one error for it
        why = str(error).partition("\n")[0].partition(". ")[0]
        raise ConfigError(
            f"learner.device = {name!r} cannot be used here: {why:.120}.",
            fix='Set it to "cpu", or install a torch that was built for this device.',
        ) from error


def memory_of(device: torch.device) -> int:
    """Bytes of memory that a device has, used or not; what this process may have of the machine's
    if the device has none of its own."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = _CGROUP_LIMIT.read_text(encoding="ascii").strip()
    except OSError:  # not on this system
        return physical
    return min(physical, int(limit)) if limit.isdigit() else physical
