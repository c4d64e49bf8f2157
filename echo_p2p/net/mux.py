"""Many streams over one secured connection: Yamux, in the place of libp2p's own muxer.

libp2p 0.8.1's muxer lets a remote fill our memory, ruins the connection's cipher when a writer is
cancelled, gives up on a slow reader after five seconds, and never notices that a peer is gone. This
one speaks the same protocol and promises:

- one task writes, so cancelling anybody never leaves half a packet on the wire;
- chunks wait behind everything else (see `outbox`), and for their turn where there is a limit on
  what the program sends (see `pacer`);
- a sender waits for the remote's window and for queue space as long as its caller lets it;
- what a remote can make us hold is bounded: streams, unread bytes, unsent answers; one that sends
  beyond a window, or what is not Yamux, loses its connection;
- a peer silent for `MISSED_PINGS` pings in a row is gone: its connection closes, and every reader
  and writer on it is told at once;
- `start` never raises: a broken connection is nobody else's trouble.

A stream leaves `streams` when it is reset, or when both sides have closed it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import trio
from libp2p.abc import IMuxedConn
from libp2p.stream_muxer.exceptions import MuxedConnUnavailable, MuxedStreamError
from trio.lowlevel import ParkingLot

from echo_p2p.net import tuning
from echo_p2p.net.bucket import MAX_QUANTUM, next_batch
from echo_p2p.net.channel import ChannelError, channel_of, sealed_bytes
from echo_p2p.net.muxed_stream import MuxedStream
from echo_p2p.net.outbox import Outbox, Part
from echo_p2p.net.pacer import Traffic
from echo_p2p.net.yamux import (
    ACK,
    DATA,
    FIN,
    GO_AWAY,
    PING,
    RST,
    SYN,
    WINDOW,
    Decoder,
    Frame,
    Piece,
    ProtocolError,
    encode,
)

_log = logging.getLogger(__name__)


class Connection(IMuxedConn):  # type: ignore[misc]
    """All streams with one peer. `traffic` is shared by all connections of a program."""

    def __init__(self, session: Any, peer_id: Any, *, traffic: Traffic) -> None:
        self.secured_conn = session
        self.traffic = traffic
        self.peer_id = peer_id
        self.event_started = trio.Event()
        self.event_closed = trio.Event()
        self.streams: dict[int, MuxedStream] = {}
        self.space = ParkingLot()
        self.rtt_s = 0.001
        self._least_rtt_s: float | None = None
        self._channel = channel_of(session)
        self._decoder = Decoder()
        self._next_id = 1 if session.is_initiator else 2
        self._scope = trio.CancelScope()
        self._closing = False
        self._growth = 0
        self._outbox = Outbox()
        self._batch = tuning.LEAST_BATCH_BYTES
        self._allowed = 0  # bytes of bulk whose turn has come
        self._filled = ParkingLot()
        self._turn_used = ParkingLot()
        self._flushed = trio.Event()
        self._offer, self._offered = trio.open_memory_channel[MuxedStream](tuning.MAX_STREAMS)
        self._pings = 0
        self._unanswered = 0
        self._pinged_at = 0.0

    # --- libp2p's interface ---------------------------------------------------------------------

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

    @property
    def remote_ip(self) -> str:
        """Where the other side is; empty if that is not known."""
        return self._channel.address

    def get_remote_address(self) -> Any:
        return self.secured_conn.get_remote_address()

    async def start(self) -> None:
        """Run until the connection ends, for whatever reason."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    for loop in (self._read, self._write, self._keep_alive, self._take_turns):
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
            self._cut_streams()
            self._put(encode(GO_AWAY, 0, 0, 0))
            if self.event_started.is_set():
                with trio.CancelScope(deadline=trio.current_time() + tuning.FLUSH_S, shield=True):
                    await self._flushed.wait()
        self._scope.cancel()
        await self._shut()

    async def _shut(self) -> None:
        self._closing = True
        self._cut_streams()
        self.space.unpark_all()
        self._offer.close()
        self._flushed.set()
        with trio.CancelScope(deadline=trio.current_time() + tuning.FLUSH_S, shield=True):
            await self._channel.close()
        self.event_started.set()
        self.event_closed.set()

    def _cut_streams(self) -> None:
        for stream in list(self.streams.values()):
            stream.cut()
            self.forget(stream)
        self._outbox.drop_bulk()

    async def open_stream(self) -> MuxedStream:
        if self._closing:
            raise MuxedStreamError("the connection is closed")
        if self._count(ours=True) >= tuning.MAX_STREAMS:
            raise MuxedStreamError(f"{tuning.MAX_STREAMS} streams are open already")
        stream = self.streams[self._next_id] = MuxedStream(self._next_id, self)
        self._next_id += 2
        self.control(WINDOW, SYN, stream.stream_id, 0)
        return stream

    async def accept_stream(self) -> MuxedStream:
        try:
            return await self._offered.receive()
        except trio.EndOfChannel as error:
            raise MuxedConnUnavailable("the connection is closed") from error

    @property
    def least_rtt_s(self) -> float:
        """The shortest round trip so far: the way, without what waits on it."""
        return self._least_rtt_s or self.rtt_s

    # --- called by streams ----------------------------------------------------------------------

    def may_grow(self, by: int) -> bool:
        """Take `by` bytes of what windows may grow by together, if they are left."""
        if 2 * by > tuning.MAX_WINDOW_BYTES or self._growth + by > tuning.GROWTH_BYTES:
            return False
        self._growth += by
        return True

    def forget(self, stream: MuxedStream) -> None:
        """A stream is over."""
        if self.streams.pop(stream.stream_id, None) is not None:
            self._growth -= stream.grown
            stream.give_back()
            if stream.broken:
                self._outbox.drop(stream.stream_id)
                self.space.unpark_all()

    def is_full(self, stream: MuxedStream, *, bulk: bool) -> bool:
        """Whether what a stream has to send should wait for `space`."""
        waiting = self._outbox.waiting(stream.stream_id) if bulk else self._outbox.urgent
        return waiting >= tuning.QUEUE_BYTES

    def waits(self, stream: MuxedStream) -> bool:
        """Whether bulk of the stream is here still."""
        return self._outbox.waiting(stream.stream_id) > 0

    def send(self, stream_id: int, body: memoryview, *, bulk: bool) -> None:
        """Queue data of a stream."""
        if bulk:
            self._outbox.put_bulk(stream_id, body)
            self._filled.unpark_all()
        else:
            self._put(encode(DATA, 0, stream_id, len(body)), body)

    def follows_bulk(self, stream: MuxedStream) -> bool:
        """Whether bulk of the stream waits here, which nothing of the stream may overtake."""
        return self._outbox.waiting(stream.stream_id) > 0

    def end(self, stream: MuxedStream) -> None:
        """Say, after all that it has sent, that a stream sends no more."""
        if not self._closing:
            self._outbox.end(stream.stream_id)
            self._filled.unpark_all()

    def control(self, kind: int, flags: int, stream_id: int, value: int) -> None:
        """Queue a frame without a body; it never waits."""
        if self._closing:
            return
        self._put(encode(kind, flags, stream_id, value))
        if self._outbox.urgent > tuning.MAX_QUEUE_BYTES:
            _log.debug("%s makes us answer and does not read the answers", self.peer_id)
            self._scope.cancel()

    def _put(self, *parts: Part) -> None:
        self._outbox.put(*parts)
        self._filled.unpark_all()

    def _count(self, *, ours: bool) -> int:
        return sum((stream_id % 2 == self._next_id % 2) == ours for stream_id in self.streams)

    # --- the four loops -------------------------------------------------------------------------

    async def _write(self) -> None:
        while True:
            parts = self._outbox.take_urgent(tuning.QUEUE_BYTES)
            if parts:
                data = b"".join(parts)
                self.traffic.up.count(sealed_bytes(len(data)))
                await self._send(data)
            elif data := b"".join(self._take_bulk()):
                began = trio.current_time()
                await self._send(data)
                slow = trio.current_time() - began > tuning.BATCH_S and self._channel.unsent() > 0
                self._batch = next_batch(self._batch, slow=slow)
            else:
                if self._closing:
                    self._flushed.set()
                await self._filled.park()

    async def _send(self, data: bytes) -> None:
        self.space.unpark_all()
        self.traffic.sent += sealed_bytes(len(data))
        await self._channel.send(data)

    def _take_bulk(self) -> list[Part]:
        if self.traffic.up.limited:
            if not self._allowed:
                return []
            parts = []
            if self._outbox.next_size(self._allowed):
                parts = self._outbox.take_frame(self._allowed)
            sent = sealed_bytes(sum(map(len, parts)))  # less than had its turn, or nothing
            self.traffic.up.count(sent - self._allowed)
            self._allowed = 0
            self._turn_used.unpark_all()
            return parts
        parts, size = [], 0
        most = min(self._batch, MAX_QUANTUM)
        while size < self._batch and self._outbox.next_size(most):
            frame = self._outbox.take_frame(most)
            parts += frame
            size += len(frame[1])
        return parts

    async def _take_turns(self) -> None:
        """While there is a limit, wait for turns with this connection's bulk, one frame each."""
        up = self.traffic.up
        while True:
            await up.until_limited()
            while self._allowed:
                await self._turn_used.park()
            while not (size := self._outbox.next_size(up.quantum)):
                await self._filled.park()
            await up.turn(size)
            self._allowed = size
            self._filled.unpark_all()

    async def _keep_alive(self) -> None:
        """Counts pings rather than seconds: a pause of our own is not the remote's silence."""
        while self._unanswered < tuning.MISSED_PINGS:
            self._unanswered += 1
            self._pings += 1
            self._pinged_at = trio.current_time()
            self.control(PING, SYN, 0, self._pings)
            await trio.sleep(tuning.PING_S)
            latest = trio.current_time() - tuning.HALF_CLOSED_S
            for stream in list(self.streams.values()):
                if stream.closed_at is not None and stream.closed_at < latest:
                    stream.abort()
        raise ChannelError(f"silent for {tuning.MISSED_PINGS * tuning.PING_S:.0f} s")

    async def _read(self) -> None:
        down = self.traffic.down
        while packets := await self._channel.receive():
            self._unanswered = 0
            for packet in packets:
                size = sealed_bytes(len(packet))
                self.traffic.received += size
                down.count(size)
                for item in self._decoder.feed(packet):
                    if isinstance(item, Piece):
                        self._on_piece(item)
                    else:
                        self._on_frame(item)
        raise ChannelError("the remote closed it")

    def _on_piece(self, piece: Piece) -> None:
        stream = self.streams.get(piece.stream_id)
        if stream is not None:
            if stream.paced:
                self.traffic.down.count(-len(piece.data))  # it was counted when it was asked for
            stream.deliver(piece.data)
            if piece.last:
                self._on_end(stream, piece.flags)

    def _on_frame(self, frame: Frame) -> None:
        if frame.kind == PING:
            self._on_ping(frame)
            return
        if frame.kind == GO_AWAY:
            raise ChannelError("the remote said goodbye")
        if frame.flags & SYN:
            self._on_open(frame.stream_id)
        stream = self.streams.get(frame.stream_id)
        if stream is None:
            return  # ended here, while this was on its way
        if frame.kind == WINDOW:
            stream.widen(frame.value)
        else:
            stream.credit -= frame.value
            if stream.credit < 0:
                raise ProtocolError("more was sent than the window allows")
        if frame.kind == WINDOW or not frame.value:
            self._on_end(stream, frame.flags)

    def _on_end(self, stream: MuxedStream, flags: int) -> None:
        if flags & RST:
            stream.cut()
            self.forget(stream)
        elif flags & FIN:
            stream.end()

    def _on_ping(self, frame: Frame) -> None:
        if frame.flags & SYN:
            self.control(PING, ACK, 0, frame.value)
        elif frame.value == self._pings:
            self.rtt_s = max(trio.current_time() - self._pinged_at, 0.001)
            self._least_rtt_s = min(self.rtt_s, self._least_rtt_s or self.rtt_s)

    def _on_open(self, stream_id: int) -> None:
        if not stream_id or stream_id % 2 == self._next_id % 2 or stream_id in self.streams:
            raise ProtocolError(f"a stream may not be opened as number {stream_id}")
        waiting = self._offered.statistics().current_buffer_used
        if self._closing or max(waiting, self._count(ours=False)) >= tuning.MAX_STREAMS:
            self.control(WINDOW, RST, stream_id, 0)
            return
        stream = self.streams[stream_id] = MuxedStream(stream_id, self)
        self._offer.send_nowait(stream)
        self.control(WINDOW, ACK, stream_id, 0)
