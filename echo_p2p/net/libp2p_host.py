"""The libp2p host we run: TCP, Noise and Yamux, nothing else, and no work of its own accord.

libp2p 0.8.1 is put together from its own building blocks rather than by `new_host`, whose defaults
accept plaintext, dial known peers unasked, and count every connection ever accepted against the
limit of open ones. What is changed is changed by the subclasses here.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from functools import partial
from typing import Any

import trio
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.x25519 import create_new_key_pair as create_noise_key_pair
from libp2p.custom_types import TProtocol
from libp2p.host.basic_host import BasicHost
from libp2p.identity.identify_push.identify_push import ID_PUSH as IDENTIFY_PUSH
from libp2p.network.auto_connector import AutoConnector
from libp2p.network.config import ConnectionConfig, RetryConfig
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.network.swarm import Swarm
from libp2p.peer.id import ID
from libp2p.peer.peerstore import PeerStore
from libp2p.protocol_muxer.exceptions import MultiselectError
from libp2p.security.noise.exceptions import PeerIDMismatchesPubkey
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE
from libp2p.security.noise.transport import Transport as NoiseTransport
from libp2p.stream_muxer.yamux.yamux import PROTOCOL_ID as YAMUX
from libp2p.transport.exceptions import MuxerUpgradeFailure
from libp2p.transport.tcp.tcp import TCP
from libp2p.transport.upgrader import TransportUpgrader

from echo_p2p.identity import Identity
from echo_p2p.net import tuning
from echo_p2p.net.mux import Connection
from echo_p2p.net.pacer import Traffic
from echo_p2p.net.stream import LOST

_log = logging.getLogger(__name__)


class Upgrader(TransportUpgrader):  # type: ignore[misc]
    """Puts our muxer on secured connections."""

    async def upgrade_connection(self, session: Any, peer_id: ID) -> Any:
        try:
            muxer = await self.muxer_multistream.select_transport(session)
        except MultiselectError as error:
            raise MuxerUpgradeFailure("no muxer in common") from error
        return muxer(session, peer_id)


class NoAutoConnector(AutoConnector):  # type: ignore[misc]
    """Never starts: libp2p's dials known peers until half of `max_connections` are open."""

    async def start(self) -> None:
        return

    def record_disconnect(self, peer_id: ID) -> None:
        return


class Network(Swarm):  # type: ignore[misc]
    """A Swarm whose inbound limits count what is open now, not all there ever was."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.auto_connector = NoAutoConnector(self)
        self._handshakes: Counter[str] = Counter()

    async def _handle_inbound_connection(self, tcp_stream: Any, maddr: Any) -> None:
        """Runs for as long as the connection lives; libp2p closes the socket when it returns."""
        source = str(tcp_stream.stream.socket.getpeername()[0])
        if (
            self._handshakes.total() >= tuning.MAX_HANDSHAKES
            or self._handshakes[source] >= tuning.MAX_HANDSHAKES_PER_ADDRESS
        ):
            _log.debug("too many handshakes at a time; %s is turned away", source)
            return
        self._handshakes[source] += 1
        try:
            connection = await self.upgrade_inbound_raw_conn(
                RawConnection(tcp_stream, False), maddr
            )
        except Exception as error:  # noqa: BLE001 - whatever a stranger's handshake provokes
            _log.debug("an inbound connection from %s failed: %r", source, error)
            return
        finally:
            self._handshakes[source] -= 1
            self._handshakes += Counter()  # forget those at zero
        await connection.event_closed.wait()

    async def shut(self) -> None:
        """Close every port and connection, all at the same time, within `CLOSE_S`."""
        self._closing = True
        with trio.CancelScope(deadline=trio.current_time() + tuning.CLOSE_S, shield=True):
            async with trio.open_nursery() as nursery:
                for listener in self.listeners.values():
                    nursery.start_soon(listener.close)
                for connection in self.get_connections():
                    nursery.start_soon(connection.close)


class Host(BasicHost):  # type: ignore[misc]
    """A host that answers Identify and Ping, asks nothing, and that no stream's handler can end."""

    def __init__(self, network: Network) -> None:
        super().__init__(network, disable_identify_address_discovery=True)
        self.remove_stream_handler(IDENTIFY_PUSH)

    def connected_peers(self) -> frozenset[str]:
        return frozenset(
            str(connection.muxed_conn.peer_id)
            for connection in self.get_network().get_connections()
            if not connection.muxed_conn.is_closed
        )

    def is_connected(self, peer_id: str) -> bool:
        return any(
            not connection.muxed_conn.is_closed
            for connection in self.get_network().get_connections(ID.from_string(peer_id))
        )

    def rtt_s(self, peer_id: str) -> float:
        """The shortest round trip seen on a live connection to a peer; 0 without one."""
        connections = self.get_network().get_connections(ID.from_string(peer_id))
        times = [c.muxed_conn.least_rtt_s for c in connections if not c.muxed_conn.is_closed]
        return float(min(times, default=0.0))

    def _schedule_identify(self, peer_id: ID, *, reason: str) -> None:
        return

    async def _push_identify_to_all_peers(self) -> None:
        return

    async def _swarm_stream_handler(self, stream: Any) -> None:
        try:
            await super()._swarm_stream_handler(stream)
        except (*LOST, ValueError) as error:
            _log.debug("an inbound stream failed: %r", error)
            await stream.reset()
        except Exception:  # noqa: BLE001 - a bug in one protocol costs one stream
            _log.exception("an inbound stream failed")
            await stream.reset()


def cause_of(error: BaseException) -> str:
    """The first cause of a libp2p error, in words."""
    while True:
        if error.__cause__ is not None:
            error = error.__cause__
        elif isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        else:
            break
    if isinstance(error, PeerIDMismatchesPubkey):
        return "another peer answers there"
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno).lower()
    return str(error).rstrip(".") or type(error).__name__


def build_host(identity: Identity, max_connections: int, traffic: Traffic) -> Host:
    """A host with this identity, not running yet; its connections share `traffic`."""
    key_pair = create_new_key_pair(identity.seed)
    noise = NoiseTransport(key_pair, noise_privkey=create_noise_key_pair().private_key)
    peer_id = ID.from_pubkey(key_pair.public_key)
    peerstore = PeerStore()
    peerstore.add_key_pair(peer_id, key_pair)
    network = Network(
        peer_id,
        peerstore,
        Upgrader({NOISE: noise}, {TProtocol(YAMUX): partial(Connection, traffic=traffic)}),
        transports=[TCP()],
        retry_config=RetryConfig(max_retries=0),
        connection_config=ConnectionConfig(
            max_connections=max_connections,
            min_connections=0,
            low_watermark=0,
            high_watermark=max_connections,
            inbound_upgrade_timeout=tuning.HANDSHAKE_S,
            outbound_upgrade_timeout=tuning.HANDSHAKE_S,
        ),
    )
    return Host(network)
