"""Weekly hours: when a node may work. Pure: the time comes in as Unix seconds.

A span is written `mon-fri 19:00-07:00`: days, then a time of day from and to. A span that ends at
or before it begins goes over midnight and belongs to the day on which it begins. What counts is the
clock on the wall of the time zone, so in the night in which clocks change a span is an hour shorter
or longer, or a stretch of it comes twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from echo_p2p.errors import ConfigError

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
DAY_MINUTES, WEEK_MINUTES = 1440, 7 * 1440
_SPAN = re.compile(r"([a-z,\-]+) (\d\d):(\d\d)-(\d\d):(\d\d)")
_FIX = 'Write it like "mon-fri 19:00-07:00", "sat,sun 00:00-24:00" or "daily 22:00-06:00".'


@dataclass(frozen=True)
class Span:
    """Minutes of the week, half open; Monday 00:00 is 0. `end` may be in the next week."""

    start: int
    end: int

    def holds(self, minute: int) -> bool:
        return self.start <= minute < self.end or self.start <= minute + WEEK_MINUTES < self.end


def parse_hours(text: str) -> list[Span]:
    """The spans of one line; ConfigError says how it is written."""
    found = _SPAN.fullmatch(text.strip().lower())
    if found is None:
        raise ConfigError(f"{text!r} are no weekly hours.", fix=_FIX)
    start, end = _minute(text, found[2], found[3]), _minute(text, found[4], found[5])
    if start == DAY_MINUTES:
        raise ConfigError(f"{text!r} begins at 24:00.", fix="Write 00:00 of the next day.")
    if end <= start:
        end += DAY_MINUTES
    return [Span(day * DAY_MINUTES + start, day * DAY_MINUTES + end) for day in _days(found[1])]


def _minute(text: str, hours: str, minutes: str) -> int:
    minute = int(hours) * 60 + int(minutes)
    if int(minutes) > 59 or minute > DAY_MINUTES:
        raise ConfigError(f"{text!r}: there is no {hours}:{minutes}.", fix=_FIX)
    return minute


def _days(text: str) -> list[int]:
    if text == "daily":
        return list(range(7))
    days: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first not in DAYS or (last or first) not in DAYS or part.endswith("-"):
            raise ConfigError(f"{part!r} names no days.", fix=_FIX)
        begin, count = DAYS.index(first), (DAYS.index(last or first) - DAYS.index(first)) % 7
        days |= {(begin + number) % 7 for number in range(count + 1)}
    return sorted(days)


class Hours:
    """The spans of all lines, in a time zone; None is the computer's own."""

    def __init__(self, lines: Iterable[str], zone: ZoneInfo | None = None) -> None:
        self._spans = [span for line in lines for span in parse_hours(line)]
        self._zone = zone

    def open_at(self, now: float) -> bool:
        """Whether work is allowed; always, if there are no spans."""
        local = local_time(now, self._zone)
        minute = local.weekday() * DAY_MINUTES + local.hour * 60 + local.minute
        return not self._spans or any(span.holds(minute) for span in self._spans)

    def next_opening(self, now: float) -> float | None:
        """The first moment at or after `now` at which work is allowed."""
        if self.open_at(now):
            return now
        openings = [t for t in self._candidates(now) if t > now and self.open_at(t)]
        return min(openings, default=None)

    def _candidates(self, now: float) -> list[float]:
        """Moments at which the hours may begin, for a little more than a week.

        A span begins where the wall says so, which may come twice; or, where the wall leaps over
        that or back into the span, at the leap.
        """
        local = local_time(now, self._zone)
        monday = local.replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=None) - timedelta(
            days=local.weekday()
        )
        begins = [
            monday + timedelta(weeks=week, minutes=span.start)
            for week in (-1, 0, 1, 2)
            for span in self._spans
        ]
        moments = [self._moment(wall, fold) for wall in begins for fold in (0, 1)]
        return moments + self._leaps(now)

    def _moment(self, wall: datetime, fold: int) -> float:
        return wall.replace(tzinfo=self._zone, fold=fold).timestamp()

    def _leaps(self, now: float) -> list[float]:
        """Moments within nine days at which the clock on the wall changes, to the second."""
        found = []
        for number in range(9 * 24):
            before, after = int(now) + number * 3600, int(now) + (number + 1) * 3600
            if self._offset(before) != self._offset(after):
                while after - before > 1:
                    middle = (before + after) // 2
                    if self._offset(middle) == self._offset(before):
                        before = middle
                    else:
                        after = middle
                found.append(float(after))
        return found

    def _offset(self, now: float) -> timedelta | None:
        return local_time(now, self._zone).utcoffset()


def local_time(now: float, zone: ZoneInfo | None) -> datetime:
    """The clock on the wall, with its offset."""
    return datetime.fromtimestamp(now, zone) if zone else datetime.fromtimestamp(now).astimezone()


def next_midnight(now: float, zone: ZoneInfo | None) -> float:
    """When the next day begins there."""
    return _midnight(local_time(now, zone) + timedelta(days=1), zone)


def next_month(now: float, zone: ZoneInfo | None) -> float:
    """When the next month begins there."""
    later = local_time(now, zone).replace(day=1) + timedelta(days=32)
    return _midnight(later.replace(day=1), zone)


def _midnight(day: datetime, zone: ZoneInfo | None) -> float:
    wall = day.replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=zone, fold=0)
    return wall.timestamp()


def check_hours(lines: Sequence[str]) -> None:
    """ConfigError if one of the lines cannot be read."""
    for line in lines:
        parse_hours(line)
