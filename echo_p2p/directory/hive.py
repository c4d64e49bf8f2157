"""hivemind's DHT, narrowed to a directory of run records.

Lives in the directory process alone: hivemind and libp2p cannot be imported in one process. What
differs from a stock DHT peer, and why:

- A stock peer decodes what strangers send (MessagePack with nested extension types) before it
  validates it: a few kilobytes end its process. It takes an empty dictionary of any expiry for a
  valid value, which then hides the record from every search. Here values are bytes and are never
  decoded, and dictionaries, which run records do not need, do not exist.
- Its storage is unbounded, and an older record offered again shortens the life of the one kept.
- Its protocols bear its class's name, so ours, named `_RunRecords`, mix with no other network.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from echo_p2p.directory.identity import libp2p_private_key
from echo_p2p.directory.lean_hivemind import (
    DHTID,
    P2P,
    DHTLocalStorage,
    DHTProtocol,
    DHTRecord,
    Multiaddr,
    P2PDaemonError,
    PeerID,
    RecordValidatorBase,
    node_module,
)
from echo_p2p.directory.messages import Open
from echo_p2p.directory.records import check_record, replaces
from echo_p2p.envelope import open_envelope
from echo_p2p.errors import DirectoryError
from echo_p2p.identity import Identity
from echo_p2p.wire import RunRecord

MAX_RECORDS = 4096
_REPLICAS = 5
_START_S = 20.0
_DIAL_S = 5.0
_ANSWER_S = 3.0
_REJOIN_S = 3.0  # p2pd itself dials a peer that failed again after 5 s only


class _AsTheyAre:
    """Serialises nothing: a value is the bytes that were sent; None says "without a subkey"."""

    @staticmethod
    def dumps(value: bytes | None) -> bytes:
        return DHTProtocol.IS_REGULAR_VALUE if value is None else value

    @staticmethod
    def loads(data: bytes) -> bytes:
        return data


class _Validator(RecordValidatorBase):  # type: ignore[misc]
    """Asked about everything that is offered to us or found by us."""

    def validate(self, record: DHTRecord) -> bool:
        if record.subkey != DHTProtocol.IS_REGULAR_VALUE:
            return False
        try:
            check_record(record.key, record.value, expiry=record.expiration_time, now=time.time())
        except DirectoryError:
            return False
        return True


class _Shelf(DHTLocalStorage):  # type: ignore[misc]
    """At most `MAX_RECORDS` records, each replaced only by one that replaces it."""

    def __init__(self) -> None:
        super().__init__(maxsize=MAX_RECORDS)

    def store(self, key: DHTID, value: bytes, expiration_time: float, subkey: None = None) -> bool:
        kept = self.get(key)
        if kept is not None and not replaces(_record_in(value), _record_in(kept.value)):
            return False
        return bool(super().store(key, value, expiration_time))


def _record_in(envelope: bytes) -> RunRecord:
    return open_envelope(envelope, RunRecord).message


class _RunRecords(DHTProtocol):  # type: ignore[misc]
    """The DHT's requests, for run records alone."""

    serializer = _AsTheyAre

    @classmethod
    async def create(cls, *args: Any, **options: Any) -> _RunRecords:
        protocol: _RunRecords = await super().create(*args, **options)
        protocol.storage = protocol.cache = _Shelf()
        return protocol


node_module.DHTProtocol = _RunRecords


class DirectoryPeer:
    """One peer of the DHT. Made by `open_peer`."""

    def __init__(self, daemon: P2P, node: Any, initial_peers: Sequence[str], serves: bool) -> None:
        self._daemon = daemon
        self._node = node
        self._protocol: _RunRecords = node.protocol
        self._initial_peers = tuple(initial_peers)
        self._serves = serves
        self._greetings: list[asyncio.Task[bool]] = []

    async def addresses(self) -> tuple[str, ...]:
        """Where this peer can be dialled."""
        if not self._serves:
            return ()
        return tuple(str(address) for address in await self._daemon.get_visible_maddrs())

    async def join(self) -> None:
        """Know at least one other peer, if any of the initial ones answers.

        DirectoryError if none does and this peer, serving nobody itself, is of no use alone.
        """
        if self._protocol.routing_table.uid_to_peer_id or not self._initial_peers:
            return
        # those who answer after the first are still added: more known peers, safer look-ups
        self._greetings = [asyncio.create_task(self._greet(each)) for each in self._initial_peers]
        for greeting in asyncio.as_completed(self._greetings):
            if await greeting:
                return
        if not self._serves:
            raise DirectoryError(
                f"none of the directory peers answers: {', '.join(self._initial_peers)}."
            )

    async def _greet(self, address: str) -> bool:
        where, peer_id = _split(address)
        try:
            async with asyncio.timeout(_DIAL_S):
                await self._daemon._client.connect(peer_id, [where])
        except (P2PDaemonError, TimeoutError):
            return False
        node_id = await self._protocol.call_ping(peer_id)
        if node_id is None:
            return False
        await self._protocol.update_routing_table(node_id, peer_id)
        return True

    async def stay_joined(self) -> None:
        """Join again whenever every other peer was lost, or none was there at first.

        A peer that only looks things up joins when it does so.
        """
        while self._serves:
            await asyncio.sleep(_REJOIN_S)
            await self.join()

    async def publish(self, place: bytes, envelope: bytes, expiry: float) -> int:
        """Offer a record to the peers nearest to its place; how many keep it now."""
        check_record(place, envelope, expiry=expiry, now=time.time())
        await self.join()
        key = DHTID.from_bytes(place)
        copies = int(self._serves and self._protocol.storage.store(key, envelope, expiry))
        nearest = await self._node.find_nearest_nodes([key], k_nearest=_REPLICAS, exclude_self=True)
        answers = await asyncio.gather(
            *(
                self._protocol.call_store(peer_id, [key], [envelope], [expiry])
                for peer_id in nearest[key].values()
            )
        )
        return copies + sum(1 for stored in answers if stored and stored[0])

    async def find(self, place: bytes) -> tuple[bytes, float] | None:
        """Of all records found at a place, the one that ends last."""
        await self.join()
        key = DHTID.from_bytes(place)
        found = (await self._node.get_many_by_id([key], float("inf")))[key]
        return None if found is None else (found.value, found.expiration_time)

    async def until_lost(self) -> None:
        """Wait for what cannot be repaired: the daemon's end, or that of our connection to it."""
        daemon = asyncio.create_task(self._daemon._child.wait())
        connection = self._daemon._client.control._read_task
        try:
            await asyncio.wait({daemon, connection}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            daemon.cancel()
        raise DirectoryError("p2pd, hivemind's network daemon, ended or closed its connection.")


@asynccontextmanager
async def open_peer(options: Open) -> AsyncIterator[DirectoryPeer]:
    """Start p2pd and a DHT peer on it, join the others, and stop both at the end.

    p2pd never outlives this process, however it ends: it exits when the connection we hold to it
    closes, and after `idle_timeout` if none was ever made.
    """
    for address in options.initial_peers:
        _split(address)
    daemon = await _start_daemon(options)
    socket_file = Path(daemon.daemon_listen_maddr["unix"])
    try:
        node = await node_module.DHTNode.create(
            daemon,
            num_replicas=_REPLICAS,
            wait_timeout=_ANSWER_S,
            client_mode=options.client_only,
            record_validator=_Validator(),
            reuse_get_requests=False,
            cache_refresh_before_expiry=0,
        )
        peer = DirectoryPeer(daemon, node, options.initial_peers, not options.client_only)
        await peer.join()
        yield peer
    finally:
        await daemon.shutdown()
        # p2pd removes it, unless it was killed
        socket_file.unlink(missing_ok=True)  # noqa: ASYNC240 - instant


async def _start_daemon(options: Open) -> P2P:
    """p2pd, without what a directory does not need: port mapping, address probing, TLS."""
    _refuse_taken(options.listen)
    with tempfile.TemporaryDirectory(prefix="echo-directory-") as folder:
        key = None
        if options.identity_path is not None:
            key = Path(folder) / "key"
            key.write_bytes(libp2p_private_key(Identity.load(Path(options.identity_path))))
        try:
            return await P2P.create(
                host_maddrs=options.listen or None,
                announce_maddrs=options.announce or None,
                no_listen=options.client_only,
                dht_mode="client" if options.client_only else "server",
                identity_path=None if key is None else str(key),
                check_if_identity_free=False,
                use_relay=not options.client_only,
                auto_nat=False,
                nat_port_map=False,
                tls=False,
                startup_timeout=_START_S,
                idle_timeout=_START_S,
            )
        except (P2PDaemonError, ValueError) as error:
            raise DirectoryError(
                f"p2pd does not start on {', '.join(options.listen) or 'no address'}: {error}."
            ) from error


def _refuse_taken(listen: Sequence[str]) -> None:
    """p2pd would share a taken port (SO_REUSEPORT), and callers reach either program by chance."""
    for address in listen:
        match address.split("/"):
            case ["", ("ip4" | "ip6") as kind, host, "tcp", port] if port.isdecimal():
                if _is_taken(socket.AF_INET6 if kind == "ip6" else socket.AF_INET, host, int(port)):
                    raise DirectoryError(
                        f"the directory cannot listen on {address}: another program does.",
                        fix="Stop it, or choose another port.",
                    )


def _is_taken(family: socket.AddressFamily, host: str, port: int) -> bool:
    """True if somebody listens there; whatever else is wrong with it, p2pd says itself."""
    try:
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        return error.errno == errno.EADDRINUSE
    return False


def _split(address: str) -> tuple[Multiaddr, PeerID]:
    """The address proper and the peer id of a multiaddr that ends in /p2p/<peer id>."""
    where, _, name = address.rpartition("/p2p/")
    try:
        return Multiaddr(where), PeerID.from_base58(name)
    except ValueError as error:
        raise DirectoryError(
            f"{address!r} is not the address of a directory peer: {error}.",
            fix="It must be a multiaddr that ends in /p2p/<peer id>.",
        ) from error
