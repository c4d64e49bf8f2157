"""A stream of frames to one peer: 4-byte big-endian length, then that many bytes, never zero.

Promises: whatever the other side does, `send` and `receive` end with a frame or a `NetError`; a
receive that was cut short by its deadline or by cancellation can be repeated, no byte is lost; a
send that was cut short breaks the stream; a sender waits while the receiver is slow.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import trio
from libp2p.exceptions import BaseLibp2pError

from echo_p2p.errors import DeadlineError, NetError
from echo_p2p.net import tuning

HEADER = struct.Struct(">I")

LOST = (BaseLibp2pError, trio.BrokenResourceError, trio.ClosedResourceError, OSError, EOFError)
"""What libp2p raises when a stream or its connection is gone."""


@dataclass(frozen=True)
class Remote:
    """Who is at the other end, as Noise has proved it, and at which IP address ("" unknown)."""

    peer_id: str
    public_key: bytes
    address: str = field(default="", compare=False)


class Stream:
    """Frames to and from one peer on one protocol. One task sends and one receives, at a time."""

    def __init__(self, net_stream: Any, peer_id: str, protocol: str) -> None:
        self.peer_id = peer_id
        self.protocol = protocol
        self._net_stream = net_stream
        self._muxed = net_stream.muxed_stream
        self._broken = False
        self._chunks: deque[bytes] = deque()
        self._held = 0  # bytes in them
        self._size: int | None = None  # of the frame they begin with, once its header was read

    @property
    def over(self) -> bool:
        """Nothing can be sent any more, or nothing will come."""
        return self._broken or self._muxed.broken or self._muxed.ended

    def when_over(self, act: Callable[[], None]) -> None:
        """Call `act` once the stream is reset or its connection lost; at once if it is already."""
        self._muxed.when_cut(act)

    async def send(self, body: bytes) -> None:
        """Send one frame; waits while the other side is not reading.

        Returns when a frame of bulk has been handed to the socket, where at most
        `tuning.UNSENT_BYTES` wait (on systems that let one say so), so that who sends such frames
        in turn knows when the uplink is free.
        """
        if not 0 < len(body) <= tuning.MAX_FRAME_BYTES:
            raise ValueError(f"a frame of {len(body)} bytes")
        if self._broken:
            raise self._lost("it is closed")
        self._broken = True  # until the whole frame is out
        try:
            header = HEADER.pack(len(body))
            bulk = self._muxed.bulk and len(body) > tuning.URGENT_BYTES
            if len(body) > tuning.JOIN_BYTES:
                await self._muxed.write(header, bulk=bulk)
                await self._muxed.write(body, bulk=bulk)
            else:
                await self._muxed.write(header + body, bulk=bulk)
            if bulk:
                await self._muxed.drain()
        except LOST as error:
            raise self._lost(str(error)) from error
        self._broken = False

    async def receive(self, max_bytes: int, *, deadline_s: float | None) -> bytes:
        """The next frame. One of more than `max_bytes` breaks the stream."""
        with trio.move_on_after(float("inf") if deadline_s is None else deadline_s):
            return await self._receive(max_bytes)
        raise DeadlineError(
            f"{self.peer_id} sent no whole frame on {self.protocol} in {deadline_s:g} s."
        )

    async def _receive(self, max_bytes: int) -> bytes:
        size = await self.next_size()
        if size is None:
            raise self._lost("it has ended")
        if not size:
            raise self._lost("an empty frame was sent")
        if size > max_bytes:
            raise self._lost(f"a frame of {size} bytes was sent; {max_bytes} are allowed")
        await self._hold(size)
        self._size = None
        return self._take(size)

    async def next_size(self) -> int | None:
        """Wait for the next frame; its size, or None if the remote has sent its last.

        The frame is still to be received.
        """
        if self._size is None:
            try:
                await self._hold(HEADER.size)
            except NetError:
                if self._muxed.ended and not self._muxed.broken and not self._held:
                    return None
                raise
            self._size = HEADER.unpack(self._take(HEADER.size))[0]
        return self._size

    async def skip(self, size: int) -> None:
        """Read the next frame, of this size, and drop it, in little memory."""
        left = size
        while left:
            await self._hold(1)
            left -= len(self._take(min(left, self._held)))
        self._size = None

    async def _hold(self, size: int) -> None:
        while self._held < size:
            try:
                chunk = await self._muxed.receive(size - self._held)
            except LOST as error:
                raise self._lost(str(error)) from error
            self._chunks.append(chunk)
            self._held += len(chunk)

    def _take(self, size: int) -> bytes:
        """The first `size` bytes held; copied once at most, if the sender cut them as we do."""
        self._held -= size
        parts = []
        while size:
            part = self._chunks.popleft()
            if len(part) > size:
                self._chunks.appendleft(part[size:])
                part = part[:size]
            parts.append(part)
            size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _lost(self, how: str) -> NetError:
        self._broken = True
        return NetError(f"the stream to {self.peer_id} on {self.protocol} broke: {how}.")

    async def close(self) -> None:
        """Say that nothing more will be sent, and let go."""
        await self._let_go(self._net_stream.close)

    async def reset(self) -> None:
        """Break the stream off."""
        await self._let_go(self._net_stream.reset)

    async def _let_go(self, how: Any) -> None:
        self._broken = True
        with trio.CancelScope(deadline=trio.current_time() + tuning.FLUSH_S, shield=True):
            await how()
