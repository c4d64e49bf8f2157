"""The libp2p host we run: TCP, Noise and Yamux, nothing else, and no work of its own accord.

libp2p is used from its own building blocks rather than through `new_host`, whose defaults accept
plaintext, dial peers unasked, and count every connection ever accepted against the limit.
"""

from __future__ import annotations

import logging
from typing import Any

import trio
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.x25519 import create_new_key_pair as create_noise_key_pair
from libp2p.custom_types import TProtocol
from libp2p.host.basic_host import BasicHost
from libp2p.network.config import ConnectionConfig, RetryConfig
from libp2p.network.swarm import Swarm
from libp2p.peer.id import ID
from libp2p.peer.peerstore import PeerStore
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE
from libp2p.security.noise.transport import Transport as NoiseTransport
from libp2p.stream_muxer.yamux.yamux import PROTOCOL_ID as YAMUX
from libp2p.stream_muxer.yamux.yamux import Yamux
from libp2p.transport.tcp.tcp import TCP
from libp2p.transport.upgrader import TransportUpgrader

from echo_p2p.identity import Identity
from echo_p2p.net.stream import LOST

HANDSHAKE_S = 10.0
MAX_HANDSHAKES = 64

_log = logging.getLogger(__name__)


class Network(Swarm):  # type: ignore[misc]
    """A Swarm whose inbound limit counts open connections and handshakes, not all that ever were."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._handshakes = 0

    async def _handle_inbound_connection(self, raw: Any, maddr: Any) -> None:
        from libp2p.network.connection.raw_connection import RawConnection

        if self._handshakes >= MAX_HANDSHAKES:
            return
        connection = RawConnection(raw, False)
        self._handshakes += 1
        try:
            muxed = await self.upgrade_inbound_raw_conn(connection, maddr)
        except Exception as error:  # noqa: BLE001 - whatever a stranger's handshake provokes
            _log.debug("an inbound connection failed: %r", error)
            return
        finally:
            self._handshakes -= 1
        await muxed.event_closed.wait()


class Host(BasicHost):  # type: ignore[misc]
    """A host that answers Identify but does not ask, and whose stream handlers cannot end it."""

    def _schedule_identify(self, peer_id: ID, *, reason: str) -> None:
        return

    async def _push_identify_to_all_peers(self) -> None:
        return

    async def _swarm_stream_handler(self, stream: Any) -> None:
        try:
            await super()._swarm_stream_handler(stream)
        except (*LOST, ValueError) as error:
            _log.debug("an inbound stream failed: %r", error)
            with trio.move_on_after(1, shield=True):
                await stream.reset()


def build_host(identity: Identity, max_connections: int) -> Host:
    """A host with this identity, not running yet."""
    key_pair = create_new_key_pair(identity.seed)
    noise = NoiseTransport(key_pair, noise_privkey=create_noise_key_pair().private_key)
    peer_id = ID.from_pubkey(key_pair.public_key)
    peerstore = PeerStore()
    peerstore.add_key_pair(peer_id, key_pair)
    network = Network(
        peer_id,
        peerstore,
        TransportUpgrader({NOISE: noise}, {TProtocol(YAMUX): Yamux}),
        transports=[TCP()],
        retry_config=RetryConfig(max_retries=0),
        connection_config=ConnectionConfig(
            max_connections=max_connections,
            min_connections=0,
            low_watermark=0,  # never dials by itself
            high_watermark=max_connections,
            inbound_upgrade_timeout=HANDSHAKE_S,
            outbound_upgrade_timeout=HANDSHAKE_S,
        ),
    )
    return Host(network, disable_identify_address_discovery=True)
