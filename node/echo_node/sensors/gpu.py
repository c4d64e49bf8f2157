"""The NVIDIA card, by its management library (nvidia-ml-py, imported when first asked).

Names and units are those of NVML's API reference: temperatures in degrees Celsius, utilisation in
percent over the last sample period, memory in bytes. Other makers' cards are unknown here.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

BUSY_PERCENT = 10
"""Of the card's time; what uses less of it is a desktop that draws its windows."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Card:
    """What one card says: load in percent, memory in bytes, who uses it by process id."""

    temperature: float | None
    load: float | None
    memory: int
    memory_of: Mapping[int, int]
    computing: frozenset[int]
    share_of: Mapping[int, int] | None


class Gpus:
    """All NVIDIA cards; none if the library or the driver is not there."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._since: dict[int, int] = {}  # by card, of the newest sample seen
        try:
            import pynvml
        except ImportError:
            return
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            log.debug("no NVIDIA card can be asked: %s", error)
            return
        self._nvml = pynvml

    def read(self) -> list[Card]:
        """Every card; what cannot be asked of it is None or empty."""
        if self._nvml is None:
            return []
        try:
            count = self._nvml.nvmlDeviceGetCount()
            return [self._card(i, self._nvml.nvmlDeviceGetHandleByIndex(i)) for i in range(count)]
        except self._nvml.NVMLError as error:  # the driver is being reset, or a card is gone
            log.debug("the cards do not answer: %s", error)
            return []

    def _ask(self, name: str, *arguments: Any) -> Any:
        """None where this card or driver does not know."""
        try:
            return getattr(self._nvml, name)(*arguments)
        except (self._nvml.NVMLError, AttributeError):
            return None

    def _card(self, index: int, handle: Any) -> Card:
        nvml = self._nvml
        load = self._ask("nvmlDeviceGetUtilizationRates", handle)
        memory = self._ask("nvmlDeviceGetMemoryInfo", handle)
        computing = self._ask("nvmlDeviceGetComputeRunningProcesses", handle) or []
        drawing = self._ask("nvmlDeviceGetGraphicsRunningProcesses", handle) or []
        return Card(
            temperature=self._ask("nvmlDeviceGetTemperature", handle, nvml.NVML_TEMPERATURE_GPU),
            load=None if load is None else float(load.gpu),
            memory=0 if memory is None else int(memory.total),
            memory_of={p.pid: int(p.usedGpuMemory or 0) for p in [*computing, *drawing]},
            computing=frozenset(process.pid for process in computing),
            share_of=self._shares(index, handle),
        )

    def _shares(self, index: int, handle: Any) -> dict[int, int] | None:
        """The newest share of each process since the last time; None if they are not known."""
        nvml = self._nvml
        try:
            samples = nvml.nvmlDeviceGetProcessUtilization(handle, self._since.get(index, 0))
        except nvml.NVMLError_NotFound:  # no process used the card
            return {}
        except (nvml.NVMLError, AttributeError):
            return None
        newest = sorted(samples, key=lambda sample: sample.timeStamp)
        self._since[index] = newest[-1].timeStamp if newest else 0
        return {int(sample.pid): int(sample.smUtil) for sample in newest}


def others(cards: list[Card], ours: Collection[int]) -> frozenset[int]:
    """Processes of others that keep a card busy.

    Where the share of each process is known, those with `BUSY_PERCENT`; else those that compute.
    """
    found: set[int] = set()
    for card in cards:
        if card.share_of is None:
            found |= card.computing
        else:
            found |= {pid for pid, share in card.share_of.items() if share >= BUSY_PERCENT}
    return frozenset(found - set(ours))
