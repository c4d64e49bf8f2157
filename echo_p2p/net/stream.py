"""A stream of frames to one peer: 4-byte big-endian length, then that many bytes, never zero.

Promises: whatever the other side does, `send` and `receive` end with a frame or a `NetError`; a
receive that was cut short by its deadline or by cancellation can be repeated, no byte is lost; a
sender waits while the receiver is slow.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import trio
from libp2p.exceptions import BaseLibp2pError

from echo_p2p.errors import DeadlineError, NetError

MAX_FRAME_BYTES = 64 * 1024 * 1024
HEADER = struct.Struct(">I")
READ_BYTES = 256 * 1024

LOST = (BaseLibp2pError, trio.BrokenResourceError, trio.ClosedResourceError, OSError, EOFError)
"""What libp2p raises when a stream or its connection is gone."""


@dataclass(frozen=True)
class Remote:
    """Who is at the other end, as Noise has proved it."""

    peer_id: str
    public_key: bytes


class FrameError(NetError):
    """A frame that breaks the rules. `code` is the reason code to refuse it with."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class Stream:
    """Frames to and from one peer on one protocol."""

    def __init__(self, raw: Any, peer_id: str, protocol: str) -> None:
        self.peer_id = peer_id
        self.protocol = protocol
        self._raw = raw
        self._buffer = bytearray()
        self._sending = trio.Lock()
        self.broken = False

    async def send(self, body: bytes) -> None:
        """Send one frame; waits while the other side is not reading."""
        if not 0 < len(body) <= MAX_FRAME_BYTES:
            raise ValueError(f"a frame of {len(body)} bytes")
        async with self._sending:
            if self.broken:
                raise self._lost("was closed before")
            self.broken = True  # until the whole frame is out
            try:
                await self._raw.write(HEADER.pack(len(body)) + body)
            except LOST as error:
                raise self._lost(str(error)) from error
            self.broken = False

    async def receive(self, max_bytes: int, *, deadline_s: float | None) -> bytes:
        """The next frame. Raises FrameError if it is over `max_bytes`."""
        with trio.move_on_after(float("inf") if deadline_s is None else deadline_s):
            return await self._body(await self.receive_header(), max_bytes)
        raise DeadlineError(f"{self.peer_id} sent nothing on {self.protocol} in {deadline_s:g} s.")

    async def receive_header(self) -> int:
        """Wait for a frame's length; it stays in the buffer until its body is taken."""
        await self._fill(HEADER.size)
        size = int(HEADER.unpack_from(self._buffer)[0])
        if size == 0:
            raise FrameError(f"{self.peer_id} sent an empty frame.", "bad_message")
        return size

    async def _body(self, size: int, max_bytes: int) -> bytes:
        if size > max_bytes:
            raise FrameError(
                f"{self.peer_id} sent a frame of {size} bytes on {self.protocol}; "
                f"{max_bytes} are allowed.",
                "too_large",
            )
        await self._fill(HEADER.size + size)
        body = bytes(self._buffer[HEADER.size : HEADER.size + size])
        del self._buffer[: HEADER.size + size]
        return body

    async def skip(self) -> None:
        """Read the frame at hand and drop it, in little memory."""
        left = HEADER.size + await self.receive_header()
        while left:
            await self._fill(1)
            taken = min(left, len(self._buffer))
            del self._buffer[:taken]
            left -= taken

    async def _fill(self, size: int) -> None:
        while len(self._buffer) < size:
            try:
                data = await self._raw.read(READ_BYTES)
            except LOST as error:
                raise self._lost(str(error)) from error
            if not data:
                raise self._lost("it closed the stream")
            self._buffer += data

    def _lost(self, how: str) -> NetError:
        self.broken = True
        return NetError(
            f"the stream to {self.peer_id} on {self.protocol} broke ({how or 'connection lost'})."
        )

    async def close(self) -> None:
        """Say that nothing more will be sent, and let go."""
        await self._let_go(self._raw.close)

    async def reset(self) -> None:
        """Break the stream off."""
        await self._let_go(self._raw.reset)

    async def _let_go(self, how: Any) -> None:
        self.broken = True
        with trio.move_on_after(1, shield=True):
            try:
                await how()
            except LOST:
                return
