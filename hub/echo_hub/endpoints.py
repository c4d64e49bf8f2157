"""What nodes may ask of the hub, over libp2p: one handler for requests, one for watch streams.

Invariants: the party asking is the one Noise authenticated, never a field of the message; a request
for another run is refused, and so is a banned key, or one too many from an address; a watcher that
does not read costs one stream and nothing else.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass

import trio

from echo_hub.publish.dissemination import Dissemination
from echo_hub.publish.publisher import Publisher
from echo_hub.rollouts.credit import Credits
from echo_hub.rollouts.doors import Allowances, KeysPerAddress
from echo_hub.rollouts.front import Front
from echo_p2p import PROTOCOL
from echo_p2p.errors import PeerRefusedError
from echo_p2p.net.host import Peer, Remote, Stream
from echo_p2p.net.rpc import answer
from echo_p2p.wire import (
    CONTROL_PROTOCOL,
    WATCH_PROTOCOL,
    Announcement,
    BadChunkReport,
    CreditRequest,
    Done,
    Farewell,
    Heartbeat,
    Hello,
    HubRequest,
    Introduce,
    Latest,
    LatestRequest,
    LeaseRequest,
    LeaseReturn,
    Message,
    Obtained,
    StandbyRequest,
    Submit,
    TurnRequest,
    Watch,
    decode,
    encode,
)

HEARTBEAT_S = 5.0
REQUESTS_AT_ONCE = 64
REQUESTS_PER_S = 20.0
"""Of one key, submissions apart: further ones wait."""
_MAX_KNOWN_NODES = 20_000


@dataclass(frozen=True)
class Greeted:
    """A node that said hello: its key, where it can be dialled, when (Unix seconds), and what it
    says of itself."""

    key: bytes
    addresses: tuple[str, ...]
    at: float
    software: str = ""
    engine: str = ""


class Endpoints:
    """Answers nodes on behalf of the front, the publisher and the run's description.

    Args:
        hears: given what nodes say of their downloads.
    """

    def __init__(
        self,
        *,
        run_id: str,
        run_envelope: bytes,
        base_envelope: bytes,
        front: Front,
        publisher: Publisher,
        credit: Credits,
        hears: Dissemination,
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
        self._credit = credit
        self._hears = hears
        self._clock = clock
        self._greeted: OrderedDict[str, Greeted] = OrderedDict()
        self._watchers: Counter[str] = Counter()
        self._watcher_left = trio.Event()

    def attach(self, peer: Peer) -> None:
        """Start answering on `peer`."""
        answer(peer, CONTROL_PROTOCOL, HubRequest, self._control, deadline_s=90.0)
        peer.serve_stream(WATCH_PROTOCOL, self._watch)

    def addresses_of(self, peer_id: str) -> tuple[str, ...]:
        """Where others may dial a node; empty if it never said, or is not to be introduced."""
        greeted = self._greeted.get(peer_id)
        if greeted is None or self._front.is_banned(greeted.key):
            return ()
        return () if self._hears.is_shunned(greeted.key) else greeted.addresses

    def greeted(self, peer_id: str) -> Greeted | None:
        """What a node said when it came; None if it has not since the hub started."""
        return self._greeted.get(peer_id)

    @property
    def in_session(self) -> Collection[str]:
        """Peer ids of the nodes with an open watch stream."""
        return self._watchers.keys()

    async def deserted(self) -> None:
        """Wait until no node is in session."""
        while self._watchers:
            await self._watcher_left.wait()

    async def _control(self, remote: Remote, request: Message) -> Message:
        if isinstance(request, Submit):
            return await self._front.submit(remote.public_key, request)
        await trio.sleep(self._requests.take(remote.public_key, trio.current_time()))
        if isinstance(request, BadChunkReport | Obtained):
            return await self._hear(remote, request)
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
            case StandbyRequest():
                return self._front.why_no_work(remote.public_key)
            case LeaseReturn():
                return await self._front.return_leases(remote.public_key, request)
            case Introduce():
                self._admit(remote)
                return await self._credit.introduce(remote.public_key, request)
            case CreditRequest():
                self._admit(remote)
                return await self._credit.statement(remote.public_key)
            case Farewell():
                return await self._front.farewell(remote.public_key)
            case TurnRequest():
                return await self._front.take_turns(remote.public_key, request)
        raise PeerRefusedError("this is no request to a hub.", code="bad_message")

    async def _hear(self, remote: Remote, said: BadChunkReport | Obtained) -> Done:
        """What a node that has greeted us says of its downloads; others are not listened to."""
        greeted = self._greeted.get(remote.peer_id)
        if greeted is None or self._front.is_banned(greeted.key):
            return Done()
        if isinstance(said, Obtained):
            self._hears.obtained(remote, said, greeted.at)
        elif said.peer in self._greeted:
            await self._hears.bad_chunk(remote, said)
        return Done()

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
        self._greeted[remote.peer_id] = Greeted(
            remote.public_key, own, self._clock(), hello.software, hello.engine
        )
        self._greeted.move_to_end(remote.peer_id)
        while len(self._greeted) > _MAX_KNOWN_NODES:
            self._greeted.popitem(last=False)
        return self._latest()

    def _latest(self) -> Latest:
        published = self._publisher.latest
        return Latest(
            run=self._run_envelope,
            base=self._base_envelope,
            adapter=published.artifact.envelope if published else None,
            hub_time=self._clock(),
            delta=published.delta_envelope if published else None,
        )

    async def _watch(self, remote: Remote, stream: Stream) -> None:
        watch = decode(await stream.receive(1024, deadline_s=10.0), Watch)
        self._check_run(watch.run_id)
        self._watchers[remote.peer_id] += 1
        try:
            seen = -1
            while True:
                with trio.move_on_after(HEARTBEAT_S) as quiet:
                    newer = await self._publisher.wait_newer(seen)
                    seen = newer.version
                    await stream.send(
                        encode(
                            Announcement(
                                adapter=newer.artifact.envelope, delta=newer.delta_envelope
                            )
                        )
                    )
                if quiet.cancelled_caught:
                    await stream.send(encode(Heartbeat(hub_time=self._clock())))
        finally:
            self._watchers[remote.peer_id] -= 1
            if not self._watchers[remote.peer_id]:
                del self._watchers[remote.peer_id]
            self._watcher_left.set()
            self._watcher_left = trio.Event()
