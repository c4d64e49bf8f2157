"""Rates of transfer as people write them: `20mbit`, `2.5MB`, `0`, `unlimited`. Pure.

A rate is bytes a second, or None for no limit. The text is strict, since a factor of eight hides in
one letter: a number and one of `UNITS`, where `bit` counts bits and a capital `B` bytes, each a
second; nothing is guessed. A positive rate is at least `LEAST`: below it one chunk would take
longer than a request for it may.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from echo_p2p.errors import ConfigError

UNITS = {
    "kbit": 125, "mbit": 125_000, "gbit": 125_000_000,
    "kB": 1000, "MB": 1_000_000, "GB": 1_000_000_000,
    "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30,
}  # fmt: skip
UNLIMITED = "unlimited"
LEAST = 64_000
"""512 kbit: a chunk of 1 MiB takes 16 s."""
_RATE = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?) ?([A-Za-z]+)")
_EXAMPLES = "Write it like 20mbit (megabits a second), 2.5MB (megabytes a second) or unlimited."


def parse_rate(text: str) -> int | None:
    """Bytes a second; None for `unlimited`. ConfigError says how it is written."""
    if text == UNLIMITED:
        return None
    if text == "0":
        return 0
    found = _RATE.fullmatch(text)
    if found is None or found[2] not in UNITS:
        raise ConfigError(f"{text!r} is not a rate.", fix=_EXAMPLES)
    rate = round(float(found[1]) * UNITS[found[2]])
    if 0 < rate < LEAST or (not rate and float(found[1])):
        raise ConfigError(
            f"a rate of {text} is too low to be of use; the least is {format_rate(LEAST)}.",
            fix="Write 0 for none at all.",
        )
    return rate


def format_rate(rate: int | None) -> str:
    """A rate as text that `parse_rate` understands, in bits; exact from a kilobit on."""
    if rate is None:
        return UNLIMITED
    if not rate:
        return "0"
    unit = "mbit" if rate >= UNITS["mbit"] else "kbit"
    return f"{rate / UNITS[unit]:.6f}".rstrip("0").rstrip(".") + unit


@dataclass(frozen=True)
class Limits:
    """What a program may send and receive together, in bytes a second; None is no limit.

    `upload` 0: gives no chunks to anybody. What it has to say itself is sent all the same.
    """

    upload: int | None = None
    download: int | None = None

    @property
    def gives(self) -> bool:
        """Whether chunks are given to others at all."""
        return self.upload != 0

    def as_text(self) -> dict[str, str]:
        """The limits as texts of rates, by the names that settings have."""
        return {
            "max_upload": format_rate(self.upload),
            "max_download": format_rate(self.download),
        }


def parse_limits(*, upload: str, download: str) -> Limits:
    """The limits of a node, from `--max-upload` and `--max-download`."""
    limits = Limits(
        upload=_option("--max-upload", upload), download=_option("--max-download", download)
    )
    if limits.download == 0:
        raise ConfigError(
            "--max-download: a node cannot do without fetching the model and its versions.",
            fix="Leave it out, or name a rate that suits you, like 10mbit.",
        )
    return limits


def _option(name: str, text: str) -> int | None:
    try:
        return parse_rate(text)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error.message}", fix=error.fix) from error
