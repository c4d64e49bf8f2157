"""The CPU, its vector extensions, and the memory this process may have.

A container's limit counts as the machine's memory: what is above it is never given.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable
from pathlib import Path

import psutil

from echo_node.hardware.apple import Run, run
from echo_node.hardware.base import Cpu

_CPUINFO = Path("/proc/cpuinfo")
_CGROUPS = Path("/sys/fs/cgroup")
_LINUX = {
    "avx2": "avx2",
    "avx512f": "avx512",
    "avx512_bf16": "bf16",
    "amx_bf16": "bf16",
    "asimd": "neon",
    "bf16": "bf16",
    "sve": "sve",
}
_MAC = {
    "hw.optional.avx2_0": "avx2",
    "hw.optional.avx512f": "avx512",
    "hw.optional.neon": "neon",
    "hw.optional.arm.FEAT_BF16": "bf16",
}


def look_at_cpu(*, cpuinfo: Path = _CPUINFO, system: str = sys.platform, run: Run = run) -> Cpu:
    """Name, cores and vector extensions; the last are empty where the system does not say."""
    if system == "darwin":
        name = run(["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"])
        vectors = [
            ours for key, ours in _MAC.items() if run(["/usr/sbin/sysctl", "-n", key]) == "1"
        ]
    else:
        name, flags = _read_cpuinfo(cpuinfo)
        vectors = [ours for flag, ours in _LINUX.items() if flag in flags]
    return Cpu(
        name=name or platform.processor() or "unknown",
        cores=_cores(),
        vectors=tuple(dict.fromkeys(vectors)),
    )


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _read_cpuinfo(cpuinfo: Path) -> tuple[str, frozenset[str]]:
    """Model name and flags of the first core that states them."""
    name, flags = "", frozenset[str]()
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "", flags
    for line in lines:
        key, _, value = line.partition(":")
        match key.strip().lower():
            case "model name" if not name:
                name = value.strip()
            case "flags" | "features" if not flags:
                flags = frozenset(value.split())
    return name, flags


def look_at_memory(
    *,
    cgroups: Path = _CGROUPS,
    own: Path = Path("/proc/self/cgroup"),
    machine: Callable[[], tuple[int, int]] | None = None,
) -> tuple[int, int]:
    """All memory this process may have, and what is unused of it."""
    if machine is None:
        memory = psutil.virtual_memory()
        total, free = int(memory.total), int(memory.available)
    else:
        total, free = machine()
    for folder in _groups(cgroups, own):
        limit, used = _number(folder / "memory.max"), _number(folder / "memory.current")
        if limit is None:  # the older kind of control groups
            limit = _number(folder / "memory.limit_in_bytes")
            used = _number(folder / "memory.usage_in_bytes")
        if limit is not None and limit < total:
            total = limit
            free = min(free, limit - (used or 0) + _reclaimable(folder / "memory.stat"))
    return total, max(0, free)


def _groups(cgroups: Path, own: Path) -> list[Path]:
    """The folders of this process's groups, from the root down."""
    folders = [cgroups, cgroups / "memory"]
    try:
        lines = own.read_text(encoding="utf-8").splitlines()
    except OSError:
        return folders
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "memory"):
            folder = cgroups / controllers
            for part in Path(path.lstrip("/")).parts:
                folder = folder / part
                folders.append(folder)
    return folders


def _reclaimable(stat: Path) -> int:
    """Bytes of files that a group keeps in memory and gives up when it is short."""
    try:
        facts = dict(line.split() for line in stat.read_text(encoding="utf-8").splitlines())
    except (OSError, ValueError):
        return 0
    return int(facts.get("inactive_file", "0"))


def _number(file: Path) -> int | None:
    try:
        text = file.read_text(encoding="utf-8").strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None
