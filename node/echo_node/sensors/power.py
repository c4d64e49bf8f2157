"""Whether the computer runs on its battery. Linux: sysfs; elsewhere: psutil.

`/sys/class/power_supply/*`: Documentation/ABI/testing/sysfs-class-power of the Linux kernel.
"""

from __future__ import annotations

from pathlib import Path

SUPPLIES = Path("/sys/class/power_supply")


def on_battery() -> bool | None:
    """None if there is nothing that could say."""
    return from_sysfs(SUPPLIES) if SUPPLIES.is_dir() else _from_psutil()


def _from_psutil() -> bool | None:
    import psutil

    battery = psutil.sensors_battery()
    return None if battery is None or battery.power_plugged is None else not battery.power_plugged


def from_sysfs(root: Path) -> bool | None:
    """From a folder like `SUPPLIES`. The battery of a mouse has the scope "Device"."""
    discharging, charging, plugged = False, False, False
    try:
        supplies = list(root.iterdir())
    except OSError:
        return None
    for supply in supplies:
        if _read(supply / "scope") == "Device":
            continue
        kind = _read(supply / "type")
        if kind == "Battery":
            status = _read(supply / "status")
            discharging |= status == "Discharging"
            charging |= status in ("Charging", "Full", "Not charging")
        elif _read(supply / "online") in ("1", "2"):
            plugged = True
    if plugged or charging:
        return False
    return True if discharging else None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
