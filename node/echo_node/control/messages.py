"""What a command and a running node say to each other: one request, one reply, a connection each.

A frame is a 4-byte big-endian length and a MessagePack message.
"""

from __future__ import annotations

import struct
from typing import Annotated

import msgspec
from msgspec import Meta

from echo_node.limits.amounts import LONGEST_S
from echo_node.limits.book import Entry
from echo_node.snapshot import LogLine, Snapshot

HEADER = struct.Struct(">I")
MAX_REQUEST_BYTES = 64 << 10
MAX_REPLY_BYTES = 4 << 20
MOST_LINES = 1000

Text = Annotated[str, Meta(max_length=10_000)]


class _Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag=True):
    pass


class GetStatus(_Message, frozen=True):
    """How does it stand?"""


class Pause(_Message, frozen=True):
    """Stop working, for so many seconds; None until `Resume`."""

    seconds: Annotated[float, Meta(gt=0, le=LONGEST_S)] | None = None


class Resume(_Message, frozen=True):
    """Take back a pause that was asked for. Limits still hold."""


class Leave(_Message, frozen=True):
    """Hand in what is running, give back the rest, say goodbye and end."""


class GetLimits(_Message, frozen=True):
    """Which limits are in force?"""


class SetLimits(_Message, frozen=True):
    """Change limits from now on: all of these, or none if one is wrong. `save`: to the file too."""

    changes: Annotated[dict[Text, Text], Meta(max_length=100)]
    save: bool = False


class GetLogs(_Message, frozen=True):
    """The last `most` lines with a number above `after`."""

    after: Annotated[int, Meta(ge=-1)] = -1
    most: Annotated[int, Meta(ge=1, le=MOST_LINES)] = 100


class Status(_Message, frozen=True):
    snapshot: Snapshot


class LimitsInForce(_Message, frozen=True):
    """`file` is the `node.toml` that counts, whether it exists or not."""

    file: str
    entries: list[Entry]


class Logs(_Message, frozen=True):
    lines: list[LogLine]


class Refused(_Message, frozen=True):
    """It cannot be done; nothing has changed. `fix` says what would help."""

    message: str
    fix: str = ""


Request = GetStatus | Pause | Resume | Leave | GetLimits | SetLimits | GetLogs
Reply = Status | LimitsInForce | Logs | Refused
