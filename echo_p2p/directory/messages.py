"""What a program and its directory process say to each other over their pipe (echo_p2p.pipes).

`Open` comes first and is answered once; then any number of numbered calls, answered in any order.
"""

from __future__ import annotations

import msgspec


class _Frame(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag=True):
    number: int


class Open(_Frame, frozen=True):
    """Start the DHT peer. With `client_only` it listens nowhere and serves nobody."""

    listen: tuple[str, ...]
    announce: tuple[str, ...]
    initial_peers: tuple[str, ...]
    client_only: bool
    identity_path: str | None


class Opened(_Frame, frozen=True):
    """It runs and can be dialled at `addresses` (each ends in /p2p/<peer id>)."""

    addresses: tuple[str, ...]


class Publish(_Frame, frozen=True):
    """Store a record at the peers nearest to `place`."""

    place: bytes
    envelope: bytes
    expiry: float


class Published(_Frame, frozen=True):
    """How many peers now keep the record, this one included."""

    copies: int


class Find(_Frame, frozen=True):
    """Look for the record at `place`."""

    place: bytes


class Found(_Frame, frozen=True):
    """The record that ends last of all that were found, and when; None if there is none."""

    envelope: bytes | None
    expiry: float


class Failed(_Frame, frozen=True):
    """The call could not be carried out."""

    message: str


Command = Open | Publish | Find
Reply = Opened | Published | Found | Failed
