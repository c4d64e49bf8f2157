"""Apple chips, through `sysctl` and `system_profiler`. Any chip, known or not, is described.

How much of the unified memory the GPU may use: what the owner set with
`sysctl iogpu.wired_limit_mb`, else macOS's own limit, which Metal reports as
recommendedMaxWorkingSetSize: about 2/3 of the RAM up to 36 GB, and 3/4 above.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence

import psutil

from echo_node.hardware.base import GIB, Accelerator, Found

COMMAND_S = 10.0
SMALL_RAM = 36 * GIB

Run = Callable[[Sequence[str]], str]
"""The output of a command; empty if it cannot be run."""


def run(command: Sequence[str]) -> str:
    """See `Run`."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=COMMAND_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def look(
    run: Run = run, *, system: str = sys.platform, ram_free: Callable[[], int] | None = None
) -> Found:
    """The chip's GPU, on a Mac with an Apple chip; nothing elsewhere."""
    if system != "darwin" or run(["/usr/sbin/sysctl", "-n", "hw.optional.arm64"]) != "1":
        return Found()
    ram = _number(run(["/usr/sbin/sysctl", "-n", "hw.memsize"]))
    limit_mb = _number(run(["/usr/sbin/sysctl", "-n", "iogpu.wired_limit_mb"]))
    memory = gpu_share(ram, limit_mb)
    free = int(psutil.virtual_memory().available) if ram_free is None else ram_free()
    name = run(["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]) or "Apple chip"
    cores, family = _graphics(run)
    chip = Accelerator(
        kind="metal",
        name=name,
        memory=memory,
        free=min(memory, free),
        driver=family,
        capability=f"{cores} GPU cores" if cores else "",
        unified=True,
    )
    return Found((chip,))


def gpu_share(ram: int, limit_mb: int) -> int:
    """Bytes the GPU may use of so much RAM; `limit_mb` 0 is macOS's own limit."""
    if limit_mb:
        return min(ram, limit_mb << 20)
    return ram * 2 // 3 if ram <= SMALL_RAM else ram * 3 // 4


def _graphics(run: Run) -> tuple[str, str]:
    """GPU cores and Metal's family; empty where system_profiler says nothing of them."""
    text = run(["/usr/sbin/system_profiler", "SPDisplaysDataType", "-json"])
    try:
        display = json.loads(text)["SPDisplaysDataType"][0]
        family = str(display.get("spdisplays_mtlgpufamilysupport", ""))
        return str(display.get("sppci_cores", "")), family.removeprefix("spdisplays_")
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return "", ""


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0
