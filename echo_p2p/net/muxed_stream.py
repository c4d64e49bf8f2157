"""One stream of a muxed connection: its two windows, and what has come and was not read yet.

Where a program limits what it receives, the streams on which it asks for chunks are `paced`: the
remote gets credit only in turns (see `pacer`), as far ahead as a round trip needs, and no more than
the reader waits for. So that this holds from the first byte, who serves such a protocol keeps to
`FIRST_BULK_BYTES` until it gets more, instead of Yamux's 256 KiB (docs/protocol.md, "Transport").

Invariants: `credit`, what the remote may still send, is never negative; what waits to be read is at
most `target` bytes; a stream that is `broken` holds nothing and lets nobody wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import trio
from libp2p.abc import IMuxedStream
from libp2p.stream_muxer.exceptions import MuxedStreamEOF, MuxedStreamReset
from trio.lowlevel import ParkingLot

from echo_p2p.net import tuning
from echo_p2p.net.bucket import QUANTUM_S
from echo_p2p.net.channel import MAX_PLAIN_BYTES
from echo_p2p.net.yamux import HEADER, RST, WINDOW, WINDOW_BYTES, ProtocolError

if TYPE_CHECKING:
    from echo_p2p.net.mux import Connection

MAX_CREDIT = 1 << 31
MAX_BODY_BYTES = MAX_PLAIN_BYTES - HEADER.size
"""A full frame fills one Noise packet."""


class MuxedStream(IMuxedStream):  # type: ignore[misc]
    """One stream. Reading is for one task at a time, and so is writing."""

    def __init__(self, stream_id: int, connection: Connection) -> None:
        self.stream_id = stream_id
        self.muxed_conn = connection
        self.credit = WINDOW_BYTES
        self.target = WINDOW_BYTES
        self.grown = 0  # of it, beyond Yamux's own
        self.bulk = False  # what we send on it may be chunks
        self.paced = False
        self.closed_at: float | None = None  # when we closed our side
        self.ended = False  # the remote closed its side
        self.broken = False
        self._on_cut: Callable[[], None] | None = None
        self._window = WINDOW_BYTES  # what we may still send
        self._freed = 0  # read, but not yet given back as credit
        self._updated_at = float("-inf")
        self._chunks: deque[bytes] = deque()
        self._arrival = ParkingLot()
        self._window_opened = ParkingLot()

    # --- streams with chunks --------------------------------------------------------------------

    def serve_bulk(self) -> None:
        """We answer with chunks on this stream, which the other side has just opened."""
        self.bulk = True
        self._window -= WINDOW_BYTES - tuning.FIRST_BULK_BYTES

    def ask_bulk(self) -> None:
        """We ask for chunks on this stream, which we have just opened."""
        down, more = self.muxed_conn.traffic.down, WINDOW_BYTES - tuning.FIRST_BULK_BYTES
        self.credit -= more
        if down.limited:
            self.paced = True
            down.count(self.credit)
        else:
            self._grant(more)

    def give_back(self) -> None:
        """The stream is over: what was counted as received and never came does not count."""
        if self.paced:
            self.muxed_conn.traffic.down.count(-self.credit)
            self.paced = False

    async def _allow(self, need: int) -> None:
        """Let the remote send on, in turns, if the reader waits for `need` bytes more."""
        connection = self.muxed_conn
        down = connection.traffic.down
        ahead = max(down.quantum, int((down.rate or 0) * (connection.rtt_s + QUANTUM_S)))
        while not self.broken and not self.ended:
            lacks = max(need, down.quantum) - sum(map(len, self._chunks)) - self.credit
            size = min(down.quantum, lacks, ahead - self.credit)
            if size <= 0:
                return
            await down.turn(size)
            if self.paced:
                self._grant(size)
            else:
                down.count(-size)

    def _grant(self, size: int) -> None:
        self.credit += size
        self.muxed_conn.control(WINDOW, 0, self.stream_id, size)

    # --- reading --------------------------------------------------------------------------------

    async def receive(self, need: int = 1) -> bytes:
        """Some bytes, at least one, of `need` that the reader waits for."""
        if self.paced:
            await self._allow(need)
        while not self._chunks:
            if self.broken:
                raise MuxedStreamReset("the stream was reset")
            if self.ended:
                raise MuxedStreamEOF("the stream has ended")
            await self._arrival.park()
        chunk = self._chunks.popleft()
        self._give_credit(len(chunk))
        return chunk

    async def read(self, n: int | None = -1) -> bytes:
        """At most `n` bytes; for libp2p's own protocols."""
        chunk = await self.receive()
        if n is None or n < 0 or n >= len(chunk):
            return chunk
        self._chunks.appendleft(chunk[n:])
        self._freed -= len(chunk) - n  # it was counted, and will be again
        return chunk[:n]

    def _give_credit(self, size: int) -> None:
        """Let the remote send on; further ahead, if the window is what holds it back."""
        if self.paced:
            return
        self._freed += size
        if self._freed < self.target // 2 or self.ended or self.broken:
            return
        connection, now = self.muxed_conn, trio.current_time()
        if now - self._updated_at < 4 * connection.rtt_s and connection.may_grow(self.target):
            self._freed += self.target
            self.grown += self.target
            self.target *= 2
        self._updated_at = now
        self._grant(self._freed)
        self._freed = 0

    # --- writing --------------------------------------------------------------------------------

    async def write(self, data: bytes | memoryview, *, bulk: bool = False) -> None:
        """Queue all of `data`; waits for the remote's window and for space in our queue."""
        view, connection = memoryview(data), self.muxed_conn
        bulk = bulk or connection.follows_bulk(self)
        while view:
            if self.broken or self.closed_at is not None:
                raise MuxedStreamReset("the stream was reset or closed")
            if self._window <= 0:
                await self._window_opened.park()
            elif connection.is_full(self, bulk=bulk):
                await connection.space.park()
            else:
                size = min(len(view), self._window, MAX_BODY_BYTES)
                self._window -= size
                connection.send(self.stream_id, view[:size], bulk=bulk)
                view = view[size:]

    async def drain(self) -> None:
        """Wait until all bulk written is with the connection's socket, but for a batch."""
        while self.muxed_conn.waits(self) and not self.broken:
            await self.muxed_conn.space.park()

    # --- ending ---------------------------------------------------------------------------------

    async def close(self) -> None:
        """Send nothing more. The remote may still."""
        if self.broken or self.closed_at is not None:
            return
        self.closed_at = trio.current_time()
        self.muxed_conn.end(self)
        if self.ended:
            self.muxed_conn.forget(self)

    async def reset(self) -> None:
        """End it both ways."""
        self.abort()

    def abort(self) -> None:
        """End it both ways, without waiting."""
        if not self.broken:
            self.cut()
            self.muxed_conn.control(WINDOW, RST, self.stream_id, 0)
            self.muxed_conn.forget(self)

    def when_cut(self, act: Callable[[], None]) -> None:
        """Call `act` when the stream breaks; at once if it has."""
        self._on_cut = act
        if self.broken:
            act()

    # --- called by the connection ---------------------------------------------------------------

    def deliver(self, chunk: bytes) -> None:
        """Bytes have come."""
        if self._chunks and len(self._chunks[-1]) + len(chunk) <= tuning.MERGE_BYTES:
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
        """It is over, whoever ended it: nothing is read or written any more."""
        self.broken = True
        self._chunks.clear()
        self._arrival.unpark_all()
        self._window_opened.unpark_all()
        if self._on_cut is not None:
            self._on_cut()

    # --- the rest of libp2p's interface ---------------------------------------------------------

    def set_deadline(self, ttl: int) -> bool:
        raise NotImplementedError("callers use trio's cancel scopes")

    def get_remote_address(self) -> tuple[str, int] | None:
        address: tuple[str, int] | None = self.muxed_conn.get_remote_address()
        return address

    async def __aenter__(self) -> MuxedStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
