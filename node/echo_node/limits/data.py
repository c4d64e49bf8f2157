"""Data sent and received, by day: counted over restarts. Pure but for `load` and `save`.

Promises: a file that cannot be read starts the count anew and is said; what was counted since the
last `save` is all that a killed program forgets.
"""

from __future__ import annotations

import logging
import os
import tempfile
from dataclasses import replace
from pathlib import Path
from zoneinfo import ZoneInfo

import msgspec

from echo_node.limits.hours import local_time
from echo_node.limits.rules import Readings

KEPT_DAYS = 62

log = logging.getLogger(__name__)


class _File(msgspec.Struct, forbid_unknown_fields=True):
    days: dict[str, int]


class DataCount:
    """Bytes by the day (ISO date, in the volunteer's time zone) on which they came or went."""

    def __init__(self, days: dict[str, int] | None = None) -> None:
        self._days = dict(days or {})

    @classmethod
    def load(cls, path: Path) -> DataCount:
        """What was counted before; nothing, if there is no such file."""
        try:
            return cls(msgspec.json.decode(path.read_bytes(), type=_File).days)
        except FileNotFoundError:
            return cls()
        except (OSError, msgspec.DecodeError) as error:
            log.warning("%s cannot be read (%s); data is counted from zero.", path, error)
            return cls()

    def save(self, path: Path) -> None:
        """All at once, or not at all; a full disk is said and gone on from."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".data.")
            with os.fdopen(descriptor, "wb") as file:
                file.write(msgspec.json.encode(_File(self._days)))
            Path(temporary).replace(path)
        except OSError as error:
            log.warning("the count of data cannot be written to %s: %s", path, error)

    def add(self, count: int, now: float, zone: ZoneInfo | None) -> None:
        """Count bytes at a time in Unix seconds."""
        day = local_time(now, zone).date().isoformat()
        self._days[day] = self._days.get(day, 0) + count
        for old in sorted(self._days)[:-KEPT_DAYS]:
            del self._days[old]

    def today(self, now: float, zone: ZoneInfo | None) -> int:
        return self._days.get(local_time(now, zone).date().isoformat(), 0)

    def this_month(self, now: float, zone: ZoneInfo | None) -> int:
        month = local_time(now, zone).strftime("%Y-%m-")
        return sum(count for day, count in self._days.items() if day.startswith(month))

    def counted_in(self, readings: Readings, now: float, zone: ZoneInfo | None) -> Readings:
        """Readings with what was moved until now."""
        return replace(
            readings,
            data_today=self.today(now, zone),
            data_this_month=self.this_month(now, zone),
        )
