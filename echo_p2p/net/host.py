"""Peers: who we are connected to, requests to them, and what we answer.

Promises: only Noise connections exist, so a peer id is proven; every call ends by its deadline with
a result or a `NetError`; a request never goes twice; no handler, remote or broken stream takes the
host down; leaving `open_peer` closes every port and connection and ends every task.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import trio
from libp2p.custom_types import TProtocol
from libp2p.peer.id import ID
from libp2p.protocol_muxer.multiselect_communicator import MultiselectCommunicator

from echo_p2p.errors import (
    DeadlineError,
    EchoError,
    IdentityError,
    NetError,
    PeerRefusedError,
    UnreachableError,
)
from echo_p2p.identity import Identity, public_key_of
from echo_p2p.net import addresses, tuning
from echo_p2p.net.libp2p_host import Host, build_host
from echo_p2p.net.stream import LOST, MAX_FRAME_BYTES, FrameError, Remote, Stream
from echo_p2p.wire import Refusal, encode

MAX_CONNECTIONS = 512
STREAMS_PER_PEER = 64
IDLE_S = 120.0
KEEP_S = 60.0
"""A client lets go of an idle stream well before the server does, so that they never race."""

Handler = Callable[[Remote, bytes], Awaitable[bytes]]
StreamHandler = Callable[[Remote, Stream], Awaitable[None]]

_log = logging.getLogger(__name__)


class Peer:
    """Us, on the network. Made by `open_peer`."""

    def __init__(self, identity: Identity, host: Host) -> None:
        self.identity = identity
        self.addresses: tuple[str, ...] = addresses.dialable(
            host.get_transport_addrs(), identity.peer_id
        )
        self._host = host
        self._idle: dict[tuple[str, str], list[tuple[float, Stream]]] = defaultdict(list)
        self._slots: dict[tuple[str, str], trio.Semaphore] = {}

    @property
    def peer_id(self) -> str:
        return self.identity.peer_id

    # --- what we answer -----------------------------------------------------------------------

    def serve(
        self,
        protocol: str,
        handler: Handler,
        *,
        max_request: int,
        deadline_s: float,
        concurrency: int = 64,
    ) -> None:
        """Answer requests on a protocol."""
        slots: dict[str, trio.Semaphore] = defaultdict(lambda: trio.Semaphore(concurrency))

        async def answer(remote: Remote, stream: Stream) -> None:
            while True:
                with trio.move_on_after(IDLE_S) as idle:
                    await stream.next_size()
                if idle.cancelled_caught:
                    return
                async with slots[remote.peer_id]:
                    with trio.move_on_after(deadline_s) as reading:
                        body: bytes | None = None
                        try:
                            body = await stream.receive(max_request, deadline_s=None)
                        except FrameError as error:
                            reply = _refusal(error.code, error.message)
                            await stream.skip()
                    if reading.cancelled_caught:
                        return
                    if body is not None:
                        reply = await _handle(handler, remote, body, protocol, deadline_s)
                    with trio.move_on_after(deadline_s) as writing:
                        await stream.send(reply)
                    if writing.cancelled_caught:
                        return

        self.serve_stream(protocol, answer)

    def serve_stream(self, protocol: str, handler: StreamHandler) -> None:
        """Give each stream a peer opens on a protocol to a handler; it is closed when that ends."""

        async def accept(raw: Any) -> None:
            peer_id = str(raw.muxed_conn.peer_id)
            stream = Stream(raw, peer_id, protocol)
            clean = False
            try:
                await handler(Remote(peer_id, public_key_of(peer_id)), stream)
                clean = not stream.broken
            except (NetError, IdentityError) as error:
                _log.debug("%s", error)
            except EchoError as error:
                _log.warning("%s of %s: %s", protocol, peer_id, error)
            except Exception:
                _log.exception("the handler of %s failed", protocol)
            finally:
                await (stream.close() if clean else stream.reset())

        self._host.set_stream_handler(TProtocol(protocol), accept)

    # --- whom we are connected to -------------------------------------------------------------

    async def connect(self, targets: Sequence[str], *, deadline_s: float) -> str:
        """Connect to the one peer that these addresses name, by whichever works first."""
        names = {addresses.peer_of(address) for address in targets}
        if len(names) != 1:
            raise UnreachableError(f"one peer has to be named, not {len(names)}: {list(targets)}.")
        peer_id = names.pop()
        if peer_id == self.peer_id:
            raise UnreachableError(f"{peer_id} is this program itself.")
        failures: list[str] = []
        with trio.move_on_after(deadline_s):
            for number, address in enumerate(targets):
                if peer_id in self.connected():
                    return peer_id
                share = (trio.current_effective_deadline() - trio.current_time()) / (
                    len(targets) - number
                )
                with trio.move_on_after(share) as scope:
                    failure = await self._dial(address, peer_id)
                    if not failure:
                        return peer_id
                    failures.append(f"{address}: {failure}")
                if scope.cancelled_caught:
                    failures.append(f"{address}: no answer in {share:.1f} s")
        raise UnreachableError(
            f"no address of {peer_id} could be reached in {deadline_s:g} s: "
            + "; ".join(failures or [f"{address}: no answer" for address in targets]),
            fix="Is it running, and is its port open?",
        )

    async def _dial(self, address: str, peer_id: str) -> str:
        """Try one address; empty when connected, else how it failed."""
        network = self._host.get_network()
        failure = "no address"
        try:
            for endpoint in await addresses.endpoints(address):
                try:
                    await network.dial_addr(endpoint, ID.from_string(peer_id))
                except LOST as error:
                    failure = _cause(error)
                else:
                    return ""
        except UnreachableError as error:
            failure = error.message
        return failure

    def connected(self) -> frozenset[str]:
        """The peers we have a live connection to."""
        return frozenset(
            str(peer)
            for peer, connections in self._host.get_network().connections.items()
            if any(not connection.is_closed for connection in connections)
        )

    async def disconnect(self, peer_id: str) -> None:
        """Close all connections to a peer."""
        with trio.move_on_after(5):
            await self._host.get_network().close_peer(ID.from_string(peer_id))

    # --- what we ask --------------------------------------------------------------------------

    async def request(
        self, peer_id: str, protocol: str, body: bytes, *, max_reply: int, deadline_s: float
    ) -> bytes:
        """Send a request and wait for its reply."""
        slots = self._slots.setdefault((peer_id, protocol), trio.Semaphore(STREAMS_PER_PEER))
        with trio.move_on_after(deadline_s):
            async with slots:
                stream = await self._take(peer_id, protocol)
                done = False
                try:
                    await stream.send(body)
                    reply = await stream.receive(max_reply, deadline_s=None)
                    done = True
                finally:
                    if done:
                        self._idle[peer_id, protocol].append((trio.current_time(), stream))
                    else:
                        await stream.reset()
                return reply
        raise DeadlineError(f"{peer_id} did not answer on {protocol} in {deadline_s:g} s.")

    async def _take(self, peer_id: str, protocol: str) -> Stream:
        idle = self._idle[peer_id, protocol]
        while idle:
            since, stream = idle.pop()
            if not stream.broken and trio.current_time() - since < KEEP_S:
                return stream
            await stream.reset()
        return await self._open(peer_id, protocol)

    async def _open(self, peer_id: str, protocol: str) -> Stream:
        connections = [
            connection
            for connection in self._host.get_network().get_connections(ID.from_string(peer_id))
            if not connection.is_closed
        ]
        if not connections:
            raise UnreachableError(f"there is no connection to {peer_id}.", fix="Connect first.")
        raw = None
        opened = False
        try:
            raw = await connections[-1].new_stream()
            await self._host.multiselect_client.select_one_of(
                [TProtocol(protocol)], MultiselectCommunicator(raw)
            )
            opened = True
        except (*LOST, ValueError) as error:
            raise NetError(f"{peer_id} opened no stream on {protocol}: {_cause(error)}.") from error
        finally:
            if raw is not None and not opened:
                await Stream(raw, peer_id, protocol).reset()
        return Stream(raw, peer_id, protocol)

    def stream(
        self, peer_id: str, protocol: str, *, deadline_s: float
    ) -> AbstractAsyncContextManager[Stream]:
        """A stream of frames for the length of a block; `deadline_s` is for opening it."""

        @asynccontextmanager
        async def opened() -> AsyncIterator[Stream]:
            stream = None
            with trio.move_on_after(deadline_s):
                stream = await self._open(peer_id, protocol)
            if stream is None:
                raise DeadlineError(f"{peer_id} opened no stream in {deadline_s:g} s.")
            clean = False
            try:
                yield stream
                clean = True
            finally:
                await (stream.close() if clean else stream.reset())

        return opened()


def _cause(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error) or type(error).__name__


def _refusal(code: str, sentence: str) -> bytes:
    return encode(Refusal(code=code, sentence=sentence[:1000]))


async def _handle(
    handler: Handler, remote: Remote, body: bytes, protocol: str, deadline_s: float
) -> bytes:
    try:
        with trio.move_on_after(deadline_s):
            reply = await handler(remote, body)
            assert 0 < len(reply) <= MAX_FRAME_BYTES
            return reply
    except PeerRefusedError as error:
        return _refusal(error.code, error.message)
    except EchoError as error:
        return _refusal("error", str(error))
    except Exception:
        _log.exception("the handler of %s failed", protocol)
        return _refusal("internal", "the request could not be carried out.")
    return _refusal("deadline", f"the request was not carried out in {deadline_s:g} s.")


@asynccontextmanager
async def open_peer(
    identity: Identity, listen: Sequence[str], *, max_connections: int = MAX_CONNECTIONS
) -> AsyncIterator[Peer]:
    """Be on the network for the length of a block.

    Args:
        listen: multiaddrs to listen on, as /ip4/0.0.0.0/tcp/4001; none to only dial out.
        max_connections: most connections at a time; others are turned away.
    """
    tuning.apply()
    host = build_host(identity, max_connections)
    wanted = [addresses.parse(address) for address in listen]
    failure: Exception | None = None
    async with host.run(listen_addrs=wanted):
        missing = [a for a in listen if a not in host.get_network().listeners]
        if missing:
            failure = NetError(
                f"cannot listen on {', '.join(missing)}.", fix="Is the port in use already?"
            )
        else:
            try:
                yield Peer(identity, host)
            except Exception as error:  # noqa: BLE001 - raised again below, out of the nursery
                failure = error
            finally:
                await host.get_network().shut()
    if failure is not None:
        raise failure
