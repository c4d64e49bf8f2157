"""Amounts as people write them in limits: `20GB`, `50%`, `1h30m`. Pure.

Strict like `echo_p2p.rates`: a number and a unit, and nothing is guessed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from echo_p2p.errors import ConfigError

SIZES = {
    "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40,
}  # fmt: skip
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

_AMOUNT = re.compile(r"(\d{1,9}(?:\.\d{1,6})?) ?([A-Za-z]{2,3}|%)")
_DURATION = re.compile(r"(?:\d{1,6}(?:\.\d{1,3})?[smhd])+")
_PART = re.compile(r"([\d.]+)([smhd])")
LONGEST_S = 366 * 86_400


@dataclass(frozen=True)
class Amount:
    """Bytes, or a share (0 to 1) of what there is; exactly one of them is set."""

    size: int | None = None
    share: float | None = None

    def of(self, whole: int | None) -> int | None:
        """In bytes, of `whole` bytes; None if it is a share and the whole is not known."""
        if self.size is not None:
            return self.size
        assert self.share is not None
        return None if whole is None else int(self.share * whole)


def parse_size(text: str) -> int:
    """Bytes; ConfigError says how a size is written."""
    amount = _amount(text)
    if amount is None or amount.size is None:
        raise ConfigError(f"{text!r} is not a size.", fix="Write it like 500MB, 20GB or 8GiB.")
    return amount.size


def parse_amount(text: str) -> Amount:
    """A size, or a share as `50%`."""
    amount = _amount(text)
    if amount is None:
        raise ConfigError(f"{text!r} is neither a size nor a share.", fix="Write 8GB, or 50%.")
    return amount


def _amount(text: str) -> Amount | None:
    found = _AMOUNT.fullmatch(text)
    if found is None:
        return None
    number = float(found[1])
    if found[2] == "%":
        return Amount(share=number / 100) if 0 < number <= 100 else None
    size = round(number * SIZES[found[2]]) if found[2] in SIZES else 0
    return Amount(size=size) if size else None


def parse_duration(text: str) -> float:
    """Seconds of `90s`, `20m`, `1h30m`, `2d`."""
    if not _DURATION.fullmatch(text):
        raise ConfigError(f"{text!r} is no length of time.", fix="Write it like 20m, 1h30m or 2d.")
    seconds = sum(float(number) * SECONDS[unit] for number, unit in _PART.findall(text))
    if not 0 < seconds <= LONGEST_S:
        raise ConfigError(f"{text} is not between a moment and a year.")
    return seconds


def format_duration(seconds: float) -> str:
    """To two units: `45 s`, `12 min`, `1 h 30 min`, `2 d 4 h`."""
    left = max(0, round(seconds))
    if left < 60:
        return f"{left} s"
    minutes = left // 60
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h" if hours else f"{days} d"


def format_size(count: float) -> str:
    """`950 B`, `1.2 MB`, `20 GB`: three digits, powers of 1000."""
    value, units = float(count), ["B", "kB", "MB", "GB", "TB"]
    while value >= 999.5 and len(units) > 1:
        value /= 1000
        units.pop(0)
    digits = 0 if units[0] == "B" or value >= 99.95 else 1
    return f"{value:.{digits}f} {units[0]}"
