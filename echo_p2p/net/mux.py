"""Yamux 1.0.0: many streams over one secured connection, in the place of libp2p's own muxer.

libp2p 0.8.1's muxer lets a remote buffer without limit in our memory, breaks the connection's
cipher when a writer is cancelled, gives up on a slow reader after five seconds and notices no
dead peer. This one speaks the same protocol and promises:

- a remote that sends beyond a window, or frames that are not Yamux, loses its connection;
- one task writes, so cancelling anybody never leaves half a packet on the wire;
- a sender waits for window and queue space as long as its caller lets it, without polling;
- a peer that is silent for `MISSED_PINGS` pings in a row is gone: the connection closes, and every
  reader and writer on it is told at once;
- what a remote can make us hold is bounded: streams, unread bytes, unsent answers.

Invariants: `Stream.credit` is what the remote may still send and never negative; a stream leaves
`Connection.streams` when it is reset or when both sides have closed it.
"""

from __future__ import annotations

import logging
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import trio
from libp2p.abc import IMuxedConn, IMuxedStream
from libp2p.stream_muxer.exceptions import (
    MuxedConnUnavailable,
    MuxedStreamEOF,
    MuxedStreamError,
    MuxedStreamReset,
)
from trio.lowlevel import ParkingLot

from echo_p2p.net.channel import MAX_PLAIN_BYTES, ChannelError, channel_of

HEADER = struct.Struct(">BBHII")
DATA, WINDOW, PING, GO_AWAY = range(4)
SYN, ACK, FIN, RST = 1, 2, 4, 8

KIB, MIB = 1024, 1024 * 1024
WINDOW_BYTES = 256 * KIB  # of a new stream; the protocol fixes it
MAX_WINDOW_BYTES = 8 * MIB
GROWTH_BYTES = 32 * MIB  # what all windows of a connection may grow by together
MAX_CREDIT = 1 << 31
MAX_BODY_BYTES = MAX_PLAIN_BYTES - HEADER.size  # a full frame fills one Noise packet
MERGE_BYTES = 4 * KIB  # smaller chunks are joined: bytes cost what they weigh, not an object each
QUEUE_BYTES = 256 * KIB
MAX_QUEUE_BYTES = (
    4 * MIB
)  # control frames are not held back; a remote that provokes more is cut off
MAX_STREAMS = 128  # each way
PING_S = 15.0
MISSED_PINGS = 3
CLOSED_S = 60.0  # how long a stream we closed may stay half open
FLUSH_S = 1.0

_log = logging.getLogger(__name__)


class ProtocolError(Exception):
    """The remote broke the rules of Yamux."""


class MuxedStream(IMuxedStream):  # type: ignore[misc]
    """One stream. Reading and writing are for one task each."""

    def __init__(self, stream_id: int, connection: Connection) -> None:
        self.stream_id = stream_id
        self.muxed_conn = connection
        self.credit = WINDOW_BYTES
        self.target = WINDOW_BYTES
        self.closed_at: float | None = None
        self.ended = False
        self.broken = False
        self._on_cut: Callable[[], None] | None = None
        self._window = WINDOW_BYTES
        self._freed = 0
        self._updated_at = -1e9
        self._chunks: deque[bytes] = deque()
        self._arrival = ParkingLot()
        self._window_opened = ParkingLot()

    # --- called by the connection ---------------------------------------------------------------

    def deliver(self, chunk: bytes) -> None:
        if self._chunks and len(self._chunks[-1]) + len(chunk) <= MERGE_BYTES:
            chunk = self._chunks.pop() + chunk
        self._chunks.append(chunk)
        self._arrival.unpark_all()

    def end(self) -> None:
        """The remote has sent all it will."""
        self.ended = True
        self._arrival.unpark_all()
        if self.closed_at is not None:
            self.muxed_conn.forget(self)

    def widen(self, credit: int) -> None:
        """The remote takes more."""
        self._window += credit
        if self._window > MAX_CREDIT:
            raise ProtocolError("a window wider than any")
        self._window_opened.unpark_all()

    def cut(self) -> None:
        """The stream is over, whoever ended it: nothing is read or written any more."""
        self.broken = True
        if self._on_cut is not None:
            self._on_cut()
        self._chunks.clear()
        self._arrival.unpark_all()
        self._window_opened.unpark_all()

    def when_cut(self, act: Callable[[], None]) -> None:
        self._on_cut = act
        if self.broken:
            act()

    # --- reading ----------------------------------------------------------------------------------

    async def receive(self) -> bytes:
        """Some bytes, at least one."""
        while not self._chunks:
            if self.broken:
                raise MuxedStreamReset("the stream was reset")
            if self.ended:
                raise MuxedStreamEOF("the stream has ended")
            await self._arrival.park()
        chunk = self._chunks.popleft()
        self._take(len(chunk))
        return chunk

    async def read(self, n: int | None = -1) -> bytes:
        """At most `n` bytes, or what is there."""
        chunk = await self.receive()
        if n is not None and 0 <= n < len(chunk):
            self._chunks.appendleft(chunk[n:])
            self._freed -= len(chunk) - n  # may go below zero until the rest is read
            return chunk[:n]
        return chunk

    def _take(self, size: int) -> None:
        """Let the remote send on, and faster if the window is what holds it back."""
        self._freed += size
        if self._freed < self.target // 2 or self.ended or self.broken:
            return
        connection, now = self.muxed_conn, trio.current_time()
        if now - self._updated_at < 4 * connection.rtt_s and connection.may_grow(self.target):
            self._freed += self.target
            self.target *= 2
        self._updated_at = now
        self.credit += self._freed
        connection.control(WINDOW, 0, self.stream_id, self._freed)
        self._freed = 0

    # --- writing ----------------------------------------------------------------------------------

    async def write(self, data: bytes) -> None:
        """Queue all of `data`; waits for window and for space."""
        view, connection = memoryview(data), self.muxed_conn
        while view:
            if self.broken or self.closed_at is not None:
                raise MuxedStreamReset("the stream was reset or closed")
            if not self._window:
                await self._window_opened.park()
            elif connection.queued >= QUEUE_BYTES:
                await connection.space.park()
            else:
                size = min(len(view), self._window, MAX_BODY_BYTES)
                self._window -= size
                connection.enqueue(HEADER.pack(0, DATA, 0, self.stream_id, size), view[:size])
                view = view[size:]

    # --- ending -----------------------------------------------------------------------------------

    async def close(self) -> None:
        """Send nothing more. The remote may still."""
        if self.broken or self.closed_at is not None:
            return
        self.closed_at = trio.current_time()
        self.muxed_conn.control(WINDOW, FIN, self.stream_id, 0)
        if self.ended:
            self.muxed_conn.forget(self)

    async def reset(self) -> None:
        """End it both ways at once."""
        self.abort()

    def abort(self) -> None:
        if not self.broken:
            self.cut()
            self.muxed_conn.control(WINDOW, RST, self.stream_id, 0)
            self.muxed_conn.forget(self)

    def set_deadline(self, ttl: int) -> bool:
        raise NotImplementedError("callers use trio's cancel scopes")

    def get_remote_address(self) -> tuple[str, int] | None:
        return self.muxed_conn.get_remote_address()  # type: ignore[no-any-return]

    async def __aenter__(self) -> MuxedStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Connection(IMuxedConn):  # type: ignore[misc]
    """All streams with one peer."""

    def __init__(self, session: Any, peer_id: Any) -> None:
        self.secured_conn = session
        self.peer_id = peer_id
        self.on_close: Callable[[], Awaitable[None]] | None = None  # libp2p sets it; unused
        self.event_started = trio.Event()
        self.event_closed = trio.Event()
        self.streams: dict[int, MuxedStream] = {}
        self.space = ParkingLot()
        self.queued = 0
        self.rtt_s = 0.001
        self._channel = channel_of(session)
        self._next_id = 1 if session.is_initiator else 2
        self._scope = trio.CancelScope()
        self._closing = False
        self._growth = 0
        self._queue: deque[bytes | memoryview] = deque()
        self._filled = ParkingLot()
        self._flushed = trio.Event()
        self._offer, self._offered = trio.open_memory_channel[MuxedStream](2 * MAX_STREAMS)
        self._partial = b""
        self._body = 0  # bytes still to come of a DATA frame,
        self._body_of: MuxedStream | None = None  # their stream,
        self._body_flags = 0  # and what happens after them
        self._pings = 0
        self._unanswered = 0
        self._pinged_at = 0.0

    # --- libp2p's interface -----------------------------------------------------------------------

    @property
    def is_initiator(self) -> bool:
        return bool(self.secured_conn.is_initiator)

    @property
    def is_established(self) -> bool:
        return self.event_started.is_set() and not self._closing

    @property
    def is_closed(self) -> bool:
        return self._closing

    def get_transport_addresses(self) -> Any:
        return self.secured_conn.get_transport_addresses()

    def get_connection_type(self) -> Any:
        return self.secured_conn.get_connection_type()

    def get_remote_address(self) -> Any:
        return self.secured_conn.get_remote_address()

    async def start(self) -> None:
        """Run until the connection ends, for whatever reason; never raises."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    for loop in (self._read, self._write, self._keep_alive):
                        nursery.start_soon(self._run, loop)
                    self.event_started.set()
        finally:
            await self._shut()

    async def _run(self, loop: Callable[[], Awaitable[None]]) -> None:
        try:
            await loop()
        except (ChannelError, ProtocolError) as error:
            _log.debug("the connection to %s ended: %s", self.peer_id, error)
        except Exception:  # noqa: BLE001 - a bug of ours costs one connection, not all
            _log.exception("the connection to %s failed", self.peer_id)
        self._scope.cancel()

    async def close(self) -> None:
        """Say goodbye, then close."""
        if not self._closing:
            self._closing = True
            for stream in list(self.streams.values()):
                stream.cut()
            self._push(HEADER.pack(0, GO_AWAY, 0, 0, 0))
            if self.event_started.is_set():
                with trio.CancelScope(deadline=trio.current_time() + FLUSH_S, shield=True):
                    await self._flushed.wait()
        self._scope.cancel()
        await self._shut()

    async def _shut(self) -> None:
        self._closing = True
        for stream in list(self.streams.values()):
            stream.cut()
        self.streams.clear()
        self._queue.clear()
        self.space.unpark_all()
        self._offer.close()
        self._flushed.set()
        with trio.CancelScope(deadline=trio.current_time() + FLUSH_S, shield=True):
            await self._channel.close()
        self.event_started.set()
        self.event_closed.set()

    async def open_stream(self) -> MuxedStream:
        if self._closing:
            raise MuxedStreamError("the connection is closed")
        if self._count(ours=True) >= MAX_STREAMS:
            raise MuxedStreamError(f"{MAX_STREAMS} streams are open already")
        stream = self.streams[self._next_id] = MuxedStream(self._next_id, self)
        self._next_id += 2
        self.control(WINDOW, SYN, stream.stream_id, 0)
        return stream

    async def accept_stream(self) -> MuxedStream:
        try:
            return await self._offered.receive()
        except trio.EndOfChannel as error:
            raise MuxedConnUnavailable("the connection is closed") from error

    # --- called by streams ------------------------------------------------------------------------

    def may_grow(self, by: int) -> bool:
        """Take `by` bytes of the growth that windows have in common, if they are left."""
        if by * 2 > MAX_WINDOW_BYTES or self._growth + by > GROWTH_BYTES:
            return False
        self._growth += by
        return True

    def forget(self, stream: MuxedStream) -> None:
        if self.streams.pop(stream.stream_id, None) is not None:
            self._growth -= stream.target - WINDOW_BYTES

    def control(self, kind: int, flags: int, stream_id: int, value: int) -> None:
        """Queue a frame without a body; it is never held back."""
        if self._closing:
            return
        if self.queued > MAX_QUEUE_BYTES:
            self._scope.cancel()  # it makes us answer and does not read the answers
            return
        self._push(HEADER.pack(0, kind, flags, stream_id, value))

    def enqueue(self, header: bytes, body: memoryview) -> None:
        self._push(header)
        self._push(body)

    def _push(self, part: bytes | memoryview) -> None:
        self._queue.append(part)
        self.queued += len(part)
        self._filled.unpark()

    def _count(self, *, ours: bool) -> int:
        return sum((stream_id % 2 == self._next_id % 2) == ours for stream_id in self.streams)

    # --- the three loops --------------------------------------------------------------------------

    async def _write(self) -> None:
        while True:
            while not self._queue:
                if self._closing:
                    self._flushed.set()
                await self._filled.park()
            parts, size = [], 0
            while self._queue and size < QUEUE_BYTES:
                part = self._queue.popleft()
                parts.append(part)
                size += len(part)
            self.queued -= size
            self.space.unpark_all()
            await self._channel.send(b"".join(parts))

    async def _keep_alive(self) -> None:
        while self._unanswered < MISSED_PINGS:
            self._unanswered += 1
            self._pings += 1
            self._pinged_at = trio.current_time()
            self.control(PING, SYN, 0, self._pings)
            await trio.sleep(PING_S)
            for stream in list(self.streams.values()):
                if (
                    stream.closed_at is not None
                    and trio.current_time() > stream.closed_at + CLOSED_S
                ):
                    stream.abort()
        raise ChannelError(f"silent for {MISSED_PINGS * PING_S:.0f} s")

    async def _read(self) -> None:
        while packets := await self._channel.receive():
            self._unanswered = 0
            for packet in packets:
                self._feed(packet)
        raise ChannelError("the remote closed it")

    def _feed(self, data: bytes) -> None:
        if self._partial:
            data, self._partial = self._partial + data, b""
        at = 0
        while at < len(data):
            if self._body:
                piece = data[at : at + self._body]
                at += len(piece)
                self._body -= len(piece)
                if self._body_of is not None and not self._body_of.broken:
                    self._body_of.deliver(piece)
                if not self._body:
                    self._end(self._body_of, self._body_flags)
            elif len(data) - at < HEADER.size:
                self._partial = data[at:]
                return
            else:
                self._frame(*HEADER.unpack_from(data, at))
                at += HEADER.size

    def _frame(self, version: int, kind: int, flags: int, stream_id: int, value: int) -> None:
        if version or kind > GO_AWAY:
            raise ProtocolError("not a Yamux frame")
        if kind == PING:
            self._ping(flags, value)
        elif kind == GO_AWAY:
            raise ChannelError("the remote said goodbye")
        else:
            if flags & SYN:
                self._accept(stream_id)
            stream = self.streams.get(stream_id)
            if kind == DATA:
                self._body, self._body_of, self._body_flags = value, stream, flags
                if stream is not None:
                    stream.credit -= value
                    if stream.credit < 0:
                        raise ProtocolError("more was sent than the window allows")
                if value:
                    return
            elif stream is not None:
                stream.widen(value)
            self._end(stream, flags)

    def _end(self, stream: MuxedStream | None, flags: int) -> None:
        if stream is not None and flags & RST:
            stream.cut()
            self.forget(stream)
        elif stream is not None and flags & FIN:
            stream.end()

    def _ping(self, flags: int, value: int) -> None:
        if flags & SYN:
            self.control(PING, ACK, 0, value)
        elif value == self._pings:
            self.rtt_s = max(trio.current_time() - self._pinged_at, 0.001)

    def _accept(self, stream_id: int) -> None:
        if not stream_id or stream_id % 2 == self._next_id % 2 or stream_id in self.streams:
            raise ProtocolError(f"a stream may not be opened as number {stream_id}")
        if self._closing or self._count(ours=False) >= MAX_STREAMS:
            self.control(WINDOW, RST, stream_id, 0)
            return
        stream = MuxedStream(stream_id, self)
        try:
            self._offer.send_nowait(stream)
        except trio.WouldBlock:
            self.control(WINDOW, RST, stream_id, 0)  # opened and dropped faster than we look
            return
        self.streams[stream_id] = stream
        self.control(WINDOW, ACK, stream_id, 0)
