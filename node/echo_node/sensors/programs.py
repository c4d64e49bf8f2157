"""Which of the programs that a volunteer named are running, by psutil: the same on every system."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePath


def running(names: Iterable[str]) -> tuple[str, ...]:
    """Those of `names` that run, of any user, as the volunteer wrote them."""
    import psutil

    wanted = {_plain(name): name for name in names}
    found: set[str] = set()
    for process in psutil.process_iter(["name", "exe", "cmdline"]):
        found |= called(process.info) & wanted.keys()
    return tuple(name for plain, name in wanted.items() if plain in found)


def called(info: dict[str, object]) -> set[str]:
    """What a process may be called by: its name, its file, the first word of its command line."""
    command = info.get("cmdline")
    first = command[0] if isinstance(command, list) and command else ""
    names = (info.get("name"), info.get("exe"), first)
    return {_plain(name) for name in names if isinstance(name, str) and name}


def _plain(name: str) -> str:
    """Without folder, case and `.exe`."""
    return PurePath(name.strip().replace("\\", "/")).name.lower().removesuffix(".exe")
