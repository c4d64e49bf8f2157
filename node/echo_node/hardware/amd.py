"""AMD cards, through what Linux's amdgpu driver shows in /sys.

Files: docs.kernel.org/gpu/amdgpu ("mem_info_vram_total", "product_name"), and the compute driver's
topology, whose `gfx_target_version` is major * 10000 + minor * 100 + stepping. A card that the
compute driver does not list cannot be computed on, and is not listed here.
"""

from __future__ import annotations

from pathlib import Path

from echo_node.hardware.base import Accelerator, Found

_VENDOR = "0x1002"
_SYS = Path("/sys")
_DRM, _KFD = "class/drm", "class/kfd/kfd/topology/nodes"


def look(sys: Path = _SYS) -> Found:
    """The cards; a folder other than /sys is for tests."""
    architectures = _architectures(sys / _KFD)
    cards, problems = [], []
    for device in _devices(sys / _DRM):
        address = device.resolve().name
        memory = _number(device / "mem_info_vram_total")
        if not memory:
            continue
        architecture = architectures.get(_location(address))
        if architecture is None:
            problems.append(
                f"the AMD card at {address} is here, but its compute driver is not: "
                "install ROCm's kernel driver, and join the groups render and video."
            )
            continue
        cards.append(
            Accelerator(
                kind="rocm",
                name=_read(device / "product_name") or f"AMD {_read(device / 'device')}",
                memory=memory,
                free=max(0, memory - _number(device / "mem_info_vram_used")),
                driver=_read(sys / "module/amdgpu/version"),
                capability=architecture,
            )
        )
    return Found(tuple(cards), tuple(problems))


def architecture_of(version: int) -> str:
    """LLVM's name of an architecture: gfx90a of 90010, gfx1100 of 110000."""
    major, minor, stepping = version // 10000, version // 100 % 100, version % 100
    return f"gfx{major}{minor:x}{stepping:x}"


def _devices(drm: Path) -> list[Path]:
    try:
        cards = sorted(card for card in drm.iterdir() if card.name.removeprefix("card").isdecimal())
    except OSError:
        return []
    return [card / "device" for card in cards if _read(card / "device/vendor") == _VENDOR]


def _architectures(nodes: Path) -> dict[int, str]:
    """Architectures by the card's place on the bus, as the compute driver numbers it."""
    found = {}
    try:
        folders = list(nodes.iterdir())
    except OSError:
        return {}
    for folder in folders:
        facts = dict(
            line.split(maxsplit=1)
            for line in _read(folder / "properties").splitlines()
            if len(line.split()) == 2
        )
        version = int(facts.get("gfx_target_version", "0"))
        if version:
            found[int(facts.get("location_id", "-1"))] = architecture_of(version)
    return found


def _location(address: str) -> int:
    """The compute driver's number of a PCI address such as 0000:03:00.0: bus, then device."""
    try:
        _, bus, rest = address.split(":")
        device, function = rest.split(".")
        return int(bus, 16) << 8 | int(device, 16) << 3 | int(function)
    except ValueError:
        return -2


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _number(file: Path) -> int:
    text = _read(file)
    return int(text) if text.isdecimal() else 0
