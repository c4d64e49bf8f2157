"""Peers: who we are connected to, what we ask of them, and what we answer.

Promises: only Noise connections exist, so a peer id is proven; every call ends by its deadline with
a result or a `NetError`; no remote, handler or broken stream takes the program down, but a failure
of the network service itself does, loudly; leaving `open_peer` closes every port and connection and
ends every task.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import trio
from libp2p.custom_types import TProtocol
from libp2p.peer.id import ID
from multiaddr import Multiaddr

from echo_p2p.errors import NetError
from echo_p2p.identity import Identity
from echo_p2p.net import addresses, tuning
from echo_p2p.net.client import Client
from echo_p2p.net.dialer import Dialer
from echo_p2p.net.libp2p_host import Host, build_host
from echo_p2p.net.pacer import Traffic
from echo_p2p.net.server import Handler, Service, StreamHandler, stream_acceptor
from echo_p2p.net.stream import Remote, Stream
from echo_p2p.rates import Limits

__all__ = ["Handler", "Peer", "Remote", "Stream", "StreamHandler", "open_peer"]


class Peer:
    """This program on the network. Made by `open_peer`."""

    def __init__(self, identity: Identity, host: Host, traffic: Traffic) -> None:
        self.identity = identity
        self.withholds = False
        """For now no chunks are given to others, whatever the limits allow."""
        self._traffic = traffic
        self.addresses: tuple[str, ...] = addresses.dialable(
            host.get_transport_addrs(), identity.peer_id
        )
        self._host = host
        self._client = Client(host)
        self._dialer = Dialer(host, identity.peer_id)

    @property
    def peer_id(self) -> str:
        return self.identity.peer_id

    @property
    def limits(self) -> Limits:
        """Of all connections together."""
        return self._traffic.limits

    def limit(self, limits: Limits) -> None:
        """Other limits from now on, for what is under way too."""
        self._traffic.change(limits)

    @property
    def moved_bytes(self) -> tuple[int, int]:
        """All that was sent and received over connections so far."""
        return self._traffic.sent, self._traffic.received

    def serve(
        self,
        protocol: str,
        handler: Handler,
        *,
        max_request: int,
        deadline_s: float,
        concurrency: int = 64,
    ) -> None:
        """Answer requests on a protocol.

        Args:
            handler: its result is the reply. An EchoError it raises is sent as a `Refusal`, with
                the code of a PeerRefusedError, else "error"; any other exception is logged and
                refused as "internal". It is cancelled when the asker is gone.
            max_request: bytes; a larger request is refused as "too_large".
            deadline_s: for a request to arrive, again to be carried out, again to be replied to.
            concurrency: most requests of one peer under way at a time; more of them wait.
        """
        service = Service(
            protocol,
            handler,
            max_request=max_request,
            deadline_s=deadline_s,
            concurrency=concurrency,
        )
        self.serve_stream(protocol, service.answer)

    def serve_stream(self, protocol: str, handler: StreamHandler) -> None:
        """Give each stream that a peer opens on a protocol to `handler`.

        The stream is closed when the handler ends, and reset when it raises; the handler is
        cancelled when the stream is reset or the connection lost.
        """
        self._host.set_stream_handler(TProtocol(protocol), stream_acceptor(protocol, handler))

    async def connect(self, targets: Sequence[str], *, deadline_s: float) -> str:
        """Connect to a peer by any of its addresses (all end in its /p2p/<id>); its peer id.

        Does nothing if a connection is there already: after a DeadlineError that means a dead
        one, `disconnect` first. Raises UnreachableError, which says how each address failed.
        """
        return await self._dialer.connect(targets, deadline_s=deadline_s)

    def connected(self) -> frozenset[str]:
        """The peers we have a live connection to."""
        return self._host.connected_peers()

    def rtt_s(self, peer_id: str) -> float:
        """The round trip to a connected peer, in seconds; 0 if there is no connection."""
        return self._host.rtt_s(peer_id)

    async def disconnect(self, peer_id: str) -> None:
        """Close all connections to a peer."""
        with trio.move_on_after(tuning.CLOSE_S):
            await self._host.get_network().close_peer(ID.from_string(peer_id))

    async def request(
        self, peer_id: str, protocol: str, body: bytes, *, max_reply: int, deadline_s: float
    ) -> bytes:
        """Send a request to a connected peer and wait for its reply. It is never sent twice."""
        return await self._client.request(
            peer_id, protocol, body, max_reply=max_reply, deadline_s=deadline_s
        )

    def stream(
        self, peer_id: str, protocol: str, *, deadline_s: float
    ) -> AbstractAsyncContextManager[Stream]:
        """A stream to a connected peer for the length of a block; `deadline_s` is for opening."""
        return self._client.stream(peer_id, protocol, deadline_s=deadline_s)


def _check_listening(host: Host, wanted: Sequence[Multiaddr]) -> None:
    """libp2p only logs it when a port cannot be opened."""
    for endpoint in wanted:
        if str(endpoint) not in host.get_network().listeners:
            raise NetError(f"cannot listen on {endpoint}.")


@asynccontextmanager
async def open_peer(
    identity: Identity,
    listen: Sequence[str],
    *,
    max_connections: int = tuning.MAX_CONNECTIONS,
    limits: Limits | None = None,
) -> AsyncIterator[Peer]:
    """Be on the network for the length of a block.

    Args:
        listen: multiaddrs to listen on, as /ip4/0.0.0.0/tcp/4001; none to only dial out.
        max_connections: most connections at a time; others are turned away.
        limits: of all connections together. Chunks wait, everything else goes at once and counts.
    """
    tuning.apply()
    for address in listen:
        addresses.check_free(address)
    wanted = [addresses.parse(address).endpoint for address in listen]
    traffic = Traffic(limits or Limits())
    host = build_host(identity, max_connections, traffic)
    failure: Exception | None = None
    try:
        async with host.run(listen_addrs=wanted):
            try:
                _check_listening(host, wanted)
                yield Peer(identity, host, traffic)
            except Exception as error:  # noqa: BLE001 - raised below, not wrapped in a group
                failure = error
            finally:
                await host.get_network().shut()
    except ExceptionGroup as group:
        raise NetError(f"the network service failed: {group.exceptions[0]!r}.") from group
    if failure is not None:
        raise failure
