"""All sensors of this computer together, each asked only if a limit depends on it.

Promises: reading takes no longer than the slowest sensor's own bound (2 s) and never raises what a
sensor that is broken or absent raises; it is to be called in a thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol, TypeVar

from echo_node.limits.rules import Readings
from echo_node.limits.settings import Limits
from echo_node.sensors.gpu import Gpus, others
from echo_node.sensors.idle import idle_s
from echo_node.sensors.power import on_battery
from echo_node.sensors.programs import running
from echo_node.sensors.temperature import cpu_temperature

T = TypeVar("T")
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Own:
    """What our own processes use, in bytes; `gpu_memory` None is unknown."""

    ram: int = 0
    gpu_memory: int | None = None
    gpu_total: int | None = None


class Sensors(Protocol):
    """What the node asks; tests put another in its place where the hardware does not exist."""

    def read(self, limits: Limits, ours: Collection[int]) -> tuple[Readings, Own]:
        """`ours` are process ids of node and engine."""
        ...


class Computer:
    """The real one."""

    def __init__(self) -> None:
        self._gpus: Gpus | None = None
        self._broken: set[str] = set()

    def read(self, limits: Limits, ours: Collection[int]) -> tuple[Readings, Own]:
        if self._gpus is None:
            self._gpus = Gpus()
        cards = self._gpus.read()
        strangers = others(cards, ours)
        warm = [card.temperature for card in cards if card.temperature is not None]
        loads = [card.load for card in cards if card.load is not None]
        readings = Readings(
            on_battery=self._try("battery", on_battery),
            idle_s=self._try("idle", idle_s) if limits.only_when_idle else None,
            cpu_temperature=self._try("temperature", cpu_temperature),
            gpu_temperature=max(warm, default=None),
            gpu_load=max(loads, default=None),
            gpu_programs=tuple(sorted(_name(pid) for pid in strangers)) if cards else None,
            programs=self._try("programs", lambda: running(limits.pause_for))
            if limits.pause_for
            else None,
        )
        gpu = [sum(card.memory_of.get(pid, 0) for pid in ours) for card in cards]
        whole = max((card.memory for card in cards), default=None)
        own = Own(resident(ours), max(gpu, default=None), whole)
        return readings, own

    def _try(self, name: str, sensor: Callable[[], T]) -> T | None:
        """What a sensor says; a broken one is unknown, and said once."""
        import psutil

        try:
            return sensor()
        except (OSError, ValueError, AttributeError, psutil.Error) as error:
            if name not in self._broken:
                self._broken.add(name)
                log.warning("the sensor for %s does not work here: %r", name, error)
            return None


def resident(pids: Collection[int]) -> int:
    """Bytes of RAM of these processes together; of those that are gone, none."""
    import psutil

    total = 0
    for pid in pids:
        try:
            total += psutil.Process(pid).memory_info().rss
        except psutil.Error:
            continue
    return total


def family(pid: int) -> list[int]:
    """A process and all it started."""
    import psutil

    try:
        process = psutil.Process(pid)
        return [pid, *(child.pid for child in process.children(recursive=True))]
    except psutil.Error:
        return [pid]


def _name(pid: int) -> str:
    import psutil

    try:
        return str(psutil.Process(pid).name())
    except psutil.Error:
        return f"process {pid}"
