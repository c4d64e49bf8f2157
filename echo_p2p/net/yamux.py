"""Yamux 1.0.0 on the wire. Pure: bytes in, frames out.

A frame is a 12-byte header (version, type, flags, stream id, value) and, for DATA alone, `value`
bytes of body. Bodies are handed on as they come, so nothing is held here but a broken header.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

DATA, WINDOW, PING, GO_AWAY = range(4)
SYN, ACK, FIN, RST = 1, 2, 4, 8
WINDOW_BYTES = 256 * 1024
"""What may be sent on a new stream; the protocol fixes it."""

HEADER = struct.Struct(">BBHII")


class ProtocolError(Exception):
    """The remote broke the rules of Yamux."""


class Frame(NamedTuple):
    """A header. The body of a DATA frame follows in `Piece`s, if `value` is not zero."""

    kind: int
    flags: int
    stream_id: int
    value: int


class Piece(NamedTuple):
    """Part of a body; `last` if it is the end of it, and then the frame's `flags` take effect."""

    stream_id: int
    data: bytes
    last: bool
    flags: int


def encode(kind: int, flags: int, stream_id: int, value: int) -> bytes:
    """A header."""
    return HEADER.pack(0, kind, flags, stream_id, value)


class Decoder:
    """Takes a connection's bytes apart, however they are cut."""

    def __init__(self) -> None:
        self._partial = b""
        self._left = 0
        self._body_of = Frame(DATA, 0, 0, 0)

    def feed(self, data: bytes) -> Iterator[Frame | Piece]:
        """What these bytes complete; ProtocolError at what no Yamux sends."""
        if self._partial:
            data, self._partial = self._partial + data, b""
        at = 0
        while at < len(data):
            if self._left:
                piece = data[at : at + self._left]
                at += len(piece)
                self._left -= len(piece)
                yield Piece(self._body_of.stream_id, piece, not self._left, self._body_of.flags)
            elif len(data) - at < HEADER.size:
                self._partial = data[at:]
                return
            else:
                version, *fields = HEADER.unpack_from(data, at)
                frame = Frame(*fields)
                if version or frame.kind > GO_AWAY:
                    raise ProtocolError("not a Yamux frame")
                at += HEADER.size
                if frame.kind == DATA:
                    self._left, self._body_of = frame.value, frame
                yield frame
