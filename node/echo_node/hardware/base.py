"""What a machine has, as every source of such facts says it. All sizes are bytes.

Promise of every source: it changes nothing on the machine, takes a few seconds at most, and never
raises. What it finds out of order goes into `problems`, as sentences for the machine's owner.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec

GIB = 1 << 30


class Accelerator(msgspec.Struct, frozen=True, kw_only=True):
    """One card or chip that engines can compute on.

    `memory` is what programs may use of it in all, `free` what is unused now. `unified`: it is a
    share of the machine's RAM. `capability`: CUDA's compute capability ("8.9"), AMD's
    architecture ("gfx1100"), or the number of an Apple chip's GPU cores. `driver` empty: unknown.
    """

    kind: Literal["cuda", "rocm", "metal"]
    name: str
    memory: int
    free: int
    driver: str = ""
    capability: str = ""
    unified: bool = False


class Cpu(msgspec.Struct, frozen=True, kw_only=True):
    """`cores` are those this process may use; `vectors` of avx2, avx512, bf16, neon, sve."""

    name: str
    cores: int
    vectors: tuple[str, ...] = ()


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """A machine. `ram` is what this process may have in all, `ram_free` what is unused of it."""

    system: str
    architecture: str
    cpu: Cpu
    ram: int
    ram_free: int
    accelerators: tuple[Accelerator, ...] = ()
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class Found:
    """What one source says."""

    accelerators: tuple[Accelerator, ...] = ()
    problems: tuple[str, ...] = ()


def size(count: float) -> str:
    """Bytes for people, in binary units, as memory is sold."""
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if count >= 1 << power:
            value = count / (1 << power)
            return f"{value:.0f} {unit}" if value >= 100 else f"{value:.1f} {unit}"
    return f"{count:.0f} B"
