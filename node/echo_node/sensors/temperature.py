"""How warm the processor is: Linux, by the kernel's hwmon and thermal zones (through psutil).

macOS and Windows tell no ordinary program; there it is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

CHIPS = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "x86_pkg_temp", "soc_thermal", "acpitz")
"""Drivers that measure processors; those further left are nearer to them."""
BELIEVABLE = (1.0, 130.0)


def cpu_temperature() -> float | None:
    """Degrees Celsius of the warmest part; None if that is not known."""
    import psutil

    read = getattr(psutil, "sensors_temperatures", None)
    return None if read is None else warmest(read())


def warmest(chips: Mapping[str, Iterable[Any]]) -> float | None:
    """From what psutil says: of the best known driver, the highest reading that can be true."""
    for chip in CHIPS:
        readings = [
            sensor.current
            for sensor in chips.get(chip, ())
            if sensor.current is not None and BELIEVABLE[0] < sensor.current < BELIEVABLE[1]
        ]
        if readings:
            return float(max(readings))
    return None
