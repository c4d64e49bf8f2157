"""What nodes may ask of the hub, over libp2p: one handler for requests, one for watch streams.

Invariants: the party asking is the one Noise authenticated, never a field of the message; a request
for another run is refused, and so is a banned key, or one too many from an address; a watcher that
does not read costs one stream and nothing else.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import trio

from echo_hub.doors import Allowances, KeysPerAddress
from echo_hub.front import Front
from echo_hub.publisher import Publisher
from echo_p2p import PROTOCOL
from echo_p2p.errors import PeerRefusedError
from echo_p2p.net.host import Peer, Remote, Stream
from echo_p2p.net.rpc import answer
from echo_p2p.wire import (
    CONTROL_PROTOCOL,
    WATCH_PROTOCOL,
    Announcement,
    BadChunkReport,
    Done,
    Heartbeat,
    Hello,
    HubRequest,
    Latest,
    LatestRequest,
    LeaseRequest,
    LeaseReturn,
    Message,
    Submit,
    Watch,
    decode,
    encode,
)

HEARTBEAT_S = 5.0
REQUESTS_AT_ONCE = 64
REQUESTS_PER_S = 20.0
"""Of one key, submissions apart: further ones wait."""
_MAX_KNOWN_NODES = 20_000


class Endpoints:
    """Answers nodes on behalf of the front, the publisher and the run's description."""

    def __init__(
        self,
        *,
        run_id: str,
        run_envelope: bytes,
        base_envelope: bytes,
        front: Front,
        publisher: Publisher,
        on_bad_chunk: Callable[[str, BadChunkReport], None],
        clock: Callable[[], float],
        keys_per_address: int,
    ) -> None:
        self._keys = KeysPerAddress(keys_per_address)
        self._requests = Allowances(burst=REQUESTS_AT_ONCE, per_s=REQUESTS_PER_S)
        self._run_id = run_id
        self._run_envelope = run_envelope
        self._base_envelope = base_envelope
        self._front = front
        self._publisher = publisher
        self._on_bad_chunk = on_bad_chunk
        self._clock = clock
        self._addresses: OrderedDict[str, tuple[str, ...]] = OrderedDict()
        self._watchers = 0
        self._watcher_left = trio.Event()

    def attach(self, peer: Peer) -> None:
        """Start answering on `peer`."""
        answer(peer, CONTROL_PROTOCOL, HubRequest, self._control, deadline_s=90.0)
        peer.serve_stream(WATCH_PROTOCOL, self._watch)

    def addresses_of(self, peer_id: str) -> tuple[str, ...]:
        """Where a node said it can be dialled; empty if it never said."""
        return self._addresses.get(peer_id, ())

    @property
    def watchers(self) -> int:
        """Open watch streams: nodes that are in session now."""
        return self._watchers

    async def deserted(self) -> None:
        """Wait until no node is in session."""
        while self._watchers:
            await self._watcher_left.wait()

    async def _control(self, remote: Remote, request: Message) -> Message:
        if isinstance(request, Submit):
            return await self._front.submit(remote.public_key, request)
        await trio.sleep(self._requests.take(remote.public_key, trio.current_time()))
        if isinstance(request, BadChunkReport):
            self._on_bad_chunk(remote.peer_id, request)
            return Done()
        self._check_run(getattr(request, "run_id", self._run_id))
        match request:
            case Hello():
                self._admit(remote)
                return self._hello(remote, request)
            case LatestRequest():
                return self._latest()
            case LeaseRequest():
                self._admit(remote)
                return await self._front.request_leases(remote.public_key, request)
            case LeaseReturn():
                return await self._front.return_leases(remote.public_key, request)
        raise PeerRefusedError("this is no request to a hub.", code="bad_message")

    def _admit(self, remote: Remote) -> None:
        self._front.check_admitted(remote.public_key)
        if not self._keys.admit(remote.public_key, remote.address, self._clock()):
            raise PeerRefusedError(
                f"too many nodes have joined from {remote.address} within the last hour.",
                code="too_many_keys",
            )

    def _check_run(self, run_id: str) -> None:
        if run_id != self._run_id:
            raise PeerRefusedError(
                f"this hub serves run {self._run_id!r}, not {run_id!r}.", code="wrong_run"
            )

    def _hello(self, remote: Remote, hello: Hello) -> Latest:
        if hello.protocol != PROTOCOL:
            raise PeerRefusedError(
                f"this hub speaks protocol {PROTOCOL}, the node {hello.protocol}.",
                code="wrong_protocol",
                fix="Upgrade the older one: pip install --upgrade echo-p2p",
            )
        suffix = f"/p2p/{remote.peer_id}"
        own = tuple(address for address in hello.addresses if address.endswith(suffix))
        self._addresses[remote.peer_id] = own
        self._addresses.move_to_end(remote.peer_id)
        while len(self._addresses) > _MAX_KNOWN_NODES:
            self._addresses.popitem(last=False)
        return self._latest()

    def _latest(self) -> Latest:
        published = self._publisher.latest
        return Latest(
            run=self._run_envelope,
            base=self._base_envelope,
            adapter=published.artifact.envelope if published else None,
            hub_time=self._clock(),
        )

    async def _watch(self, remote: Remote, stream: Stream) -> None:
        watch = decode(await stream.receive(1024, deadline_s=10.0), Watch)
        self._check_run(watch.run_id)
        self._watchers += 1
        try:
            seen = -1
            while True:
                with trio.move_on_after(HEARTBEAT_S) as quiet:
                    newer = await self._publisher.wait_newer(seen)
                    seen = newer.version
                    await stream.send(encode(Announcement(adapter=newer.artifact.envelope)))
                if quiet.cancelled_caught:
                    await stream.send(encode(Heartbeat(hub_time=self._clock())))
        finally:
            self._watchers -= 1
            self._watcher_left.set()
            self._watcher_left = trio.Event()
