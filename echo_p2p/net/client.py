"""The asking side: streams to connected peers, kept open between requests.

Promises: a request is sent once, on a stream of its own for as long as it lasts; a stream whose
request did not end with a reply is reset, never used again; when a connection ends, what waits on
it fails at once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import trio
from libp2p.custom_types import TProtocol
from libp2p.peer.id import ID
from libp2p.protocol_muxer.multiselect_communicator import MultiselectCommunicator

from echo_p2p.errors import DeadlineError, NetError, UnreachableError
from echo_p2p.net import tuning
from echo_p2p.net.libp2p_host import Host, cause_of
from echo_p2p.net.stream import LOST, Stream
from echo_p2p.wire import BULK_PROTOCOLS


class _Line:
    """The streams of one protocol on one connection."""

    def __init__(self) -> None:
        self.slots = trio.Semaphore(tuning.STREAMS_PER_PROTOCOL)
        self.idle: list[tuple[float, Stream]] = []


@lru_cache(maxsize=4096)
def _id(peer_id: str) -> ID:
    return ID.from_string(peer_id)


class Client:
    """Requests and streams to the peers that a host is connected to."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._lines: WeakKeyDictionary[Any, dict[str, _Line]] = WeakKeyDictionary()

    async def request(
        self, peer_id: str, protocol: str, body: bytes, *, max_reply: int, deadline_s: float
    ) -> bytes:
        """Send a request and wait for its reply."""
        connection = self._connection(peer_id)
        line = self._lines.setdefault(connection, {}).setdefault(protocol, _Line())
        with trio.move_on_after(deadline_s):
            async with line.slots:
                stream = await self._idle(line)
                if stream is None:
                    stream = await self._open(connection, peer_id, protocol)
                answered = False
                try:
                    await stream.send(body)
                    reply = await stream.receive(max_reply, deadline_s=None)
                    answered = True
                finally:
                    if answered:
                        line.idle.append((trio.current_time(), stream))
                    else:
                        await stream.reset()
                return reply
        raise DeadlineError(
            f"{peer_id} did not answer on {protocol} in {deadline_s:g} s.",
            fix="It may be overloaded, suspended, or cut off.",
        )

    @asynccontextmanager
    async def stream(
        self, peer_id: str, protocol: str, *, deadline_s: float
    ) -> AsyncIterator[Stream]:
        """A stream for the length of a block; `deadline_s` is for opening it."""
        stream = None
        with trio.move_on_after(deadline_s):
            stream = await self._open(self._connection(peer_id), peer_id, protocol)
        if stream is None:
            raise DeadlineError(f"{peer_id} opened no stream on {protocol} in {deadline_s:g} s.")
        clean = False
        try:
            yield stream
            clean = True
        finally:
            await (stream.close() if clean else stream.reset())

    def _connection(self, peer_id: str) -> Any:
        """The newest one: after a peer was lost and came back, older ones may not know yet."""
        for connection in reversed(self._host.get_network().get_connections(_id(peer_id))):
            if not connection.muxed_conn.is_closed:
                return connection
        raise UnreachableError(f"there is no connection to {peer_id}.", fix="Connect to it first.")

    async def _idle(self, line: _Line) -> Stream | None:
        now = trio.current_time()
        while line.idle and now - line.idle[0][0] > tuning.KEEP_S:
            await line.idle.pop(0)[1].close()
        while line.idle:
            stream = line.idle.pop()[1]
            if not stream.over:
                return stream
            await stream.reset()
        return None

    async def _open(self, connection: Any, peer_id: str, protocol: str) -> Stream:
        net_stream = None
        opened = False
        try:
            net_stream = await connection.new_stream()
            await self._host.multiselect_client.select_one_of(
                [TProtocol(protocol)], MultiselectCommunicator(net_stream)
            )
            if protocol in BULK_PROTOCOLS:
                net_stream.muxed_stream.ask_bulk()
            opened = True
        except (*LOST, ValueError) as error:
            raise NetError(
                f"{peer_id} opened no stream on {protocol}: {cause_of(error)}."
            ) from error
        finally:
            if net_stream is not None and not opened:
                await Stream(net_stream, peer_id, protocol).reset()
        return Stream(net_stream, peer_id, protocol)
