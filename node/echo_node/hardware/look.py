"""The machine as a whole: every source asked, one answer."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence

from echo_node.hardware import amd, apple, nvidia
from echo_node.hardware.base import Found, Machine
from echo_node.hardware.cpu import look_at_cpu, look_at_memory

Source = Callable[[], Found]
SOURCES: tuple[Source, ...] = (nvidia.look, apple.look, amd.look)


def look(sources: Sequence[Source] = SOURCES) -> Machine:
    """What this machine has. Blocks for up to a few seconds on a Mac, else for milliseconds."""
    found = [source() for source in sources]
    ram, ram_free = look_at_memory()
    return Machine(
        system=platform.system(),
        architecture=platform.machine(),
        cpu=look_at_cpu(),
        ram=ram,
        ram_free=ram_free,
        accelerators=tuple(one for source in found for one in source.accelerators),
        problems=tuple(sentence for source in found for sentence in source.problems),
    )
