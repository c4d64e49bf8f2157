"""What others are told and given: which chunks are here, chunks in their turn, and at a hub, peers.

Promises: only verified chunks leave, of artifacts that were offered or are being fetched, from the
moment each is on disk; news of a chunk goes out at once, to whoever is waiting for it; chunks are
sent in the order that `uploads` decides, the newest version first, and a waiting request holds no
chunk in memory; a program that gives nothing says so at once, so nobody waits for it.
"""

from __future__ import annotations

import logging
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import trio

from echo_p2p.artifact import bitmap
from echo_p2p.artifact.manifest import Artifact
from echo_p2p.artifact.store import Store
from echo_p2p.errors import ChunkError, PeerRefusedError, WireError
from echo_p2p.net.host import Peer
from echo_p2p.net.rpc import Sending
from echo_p2p.net.stream import Remote
from echo_p2p.swarm.fetch import Fetch, Stats
from echo_p2p.swarm.scatter import FRESH, FRESH_LATER, SPARE, Scatter
from echo_p2p.swarm.turns import Turns
from echo_p2p.wire import (
    ChunkReply,
    ChunkRequest,
    Elsewhere,
    HaveReply,
    HaveRequest,
    Message,
    PeersReply,
    SwarmRequest,
)

NEWS_S = 0.05  # news waits for as long, so that what comes meanwhile goes along with it
MAX_INTRODUCED = 32
MAX_SEEKERS = 1024  # then those that have left are forgotten
_OLDER = 100  # added to the rank of a chunk of a version that is not the newest

_log = logging.getLogger(__name__)


@dataclass
class HubSide:
    """What the exchange of a hub does more. `addresses_of`: where a node can be dialled."""

    addresses_of: Callable[[str], tuple[str, ...]] = lambda _: ()


@dataclass
class Shelf:
    """The artifacts of one program that others may ask for."""

    offered: dict[bytes, Artifact] = field(default_factory=dict)
    fetches: dict[bytes, Fetch] = field(default_factory=dict)
    changed: trio.Event = field(default_factory=trio.Event)

    def get(self, artifact_id: bytes) -> Artifact | None:
        fetch = self.fetches.get(artifact_id)
        return self.offered.get(artifact_id) if fetch is None else fetch.artifact

    def newest(self, kind: str) -> int:
        """The newest version here of a kind of artifact."""
        fetched = (fetch.artifact for fetch in self.fetches.values())
        manifests = [artifact.manifest for artifact in (*self.offered.values(), *fetched)]
        return max((m.version for m in manifests if m.kind == kind), default=0)

    def notify(self) -> None:
        """Wake everybody who waits for something to change here."""
        self.changed.set()
        self.changed = trio.Event()


class Answers:
    """Answers the requests of SWARM_PROTOCOL.

    Args:
        damaged: called with the id of an offered artifact that turned out corrupt on disk.
    """

    def __init__(
        self,
        peer: Peer,
        store: Store,
        shelf: Shelf,
        stats: Stats,
        *,
        hub: HubSide | None,
        damaged: Callable[[bytes], None] | None,
    ) -> None:
        self._peer = peer
        self._store = store
        self._shelf = shelf
        self._stats = stats
        self._hub = hub
        self._damaged = damaged
        self._turns = Turns()
        self._watchers: defaultdict[bytes, Counter[str]] = defaultdict(Counter)
        self._scatters: dict[bytes, Scatter] = {}
        self._seekers: defaultdict[bytes, set[str]] = defaultdict(set)

    def watching(self, artifact_id: bytes) -> list[str]:
        """Peers that wait for news of an artifact."""
        return list(self._watchers.get(artifact_id, ()))

    def backlog_s(self) -> float | None:
        """How long a chunk from now on would wait to be passed on; None: it would not be."""
        return self._turns.uploads.backlog_s(trio.current_time()) if self._gives else None

    def forget(self, artifact_id: bytes) -> None:
        """It is not offered any more."""
        self._scatters.pop(artifact_id, None)
        self._seekers.pop(artifact_id, None)

    @property
    def _gives(self) -> bool:
        return self._peer.limits.gives and not self._peer.withholds

    async def answer(self, remote: Remote, request: SwarmRequest) -> Message | Sending:
        if not self._gives:
            fetch = self._shelf.fetches.get(request.artifact)
            if fetch is not None:
                fetch.meet(remote.peer_id, interested=True)
            raise PeerRefusedError("this node gives no chunks.", code="gives_nothing")
        if isinstance(request, HaveRequest):
            return await self._answer_have(remote.peer_id, request)
        if isinstance(request, ChunkRequest):
            return await self._answer_chunk(remote.peer_id, request)
        return self._answer_peers(remote.peer_id, request.artifact)

    # --- news -----------------------------------------------------------------------------------

    async def _answer_have(self, asker: str, request: HaveRequest) -> HaveReply:
        with self._watching(request.artifact, asker), trio.move_on_after(request.wait_s):
            while not self._news(request):
                await self._shelf.changed.wait()
            if request.known.strip(b"\0"):
                await trio.sleep(NEWS_S)
        artifact = self._shelf.get(request.artifact)
        have = self._store.have(request.artifact)
        if artifact is None or have is None:
            return HaveReply(have=b"")
        return HaveReply(have=bitmap.to_bytes(have, artifact.layout.count))

    @contextmanager
    def _watching(self, artifact_id: bytes, asker: str) -> Iterator[None]:
        """Know, for as long as it waits, that the asker is interested."""
        self._seen(artifact_id, asker)
        fetch = self._shelf.fetches.get(artifact_id)
        if fetch is not None:
            fetch.meet(asker, interested=True)
        watchers = self._watchers[artifact_id]
        watchers[asker] += 1
        try:
            yield
        finally:
            watchers[asker] -= 1
            if not watchers[asker]:
                del watchers[asker]
            if not watchers:
                self._watchers.pop(artifact_id, None)

    def _news(self, request: HaveRequest) -> int:
        artifact = self._shelf.get(request.artifact)
        if artifact is None:
            return 0
        known = _bits(request.known, artifact)
        return (self._store.have(request.artifact) or 0) & ~known

    # --- chunks ---------------------------------------------------------------------------------

    async def _answer_chunk(self, asker: str, request: ChunkRequest) -> Message | Sending:
        artifact = self._shelf.get(request.artifact)
        if artifact is None:
            raise PeerRefusedError("this artifact is not served here.", code="unknown_artifact")
        self._seen(request.artifact, asker)
        if request.index is not None and not self._has(artifact, request.index):
            raise PeerRefusedError(f"chunk {request.index} is not here.", code="not_here")
        rank = self._rank(asker, request, artifact)
        if rank is None:
            return Elsewhere()
        turn = self._turns.enter(
            asker,
            rank=rank,
            size=artifact.layout.chunk_bytes,
            rtt_s=self._peer.rtt_s(asker),
        )
        handed_over = False
        try:
            await turn.begins()
            index = self._pick(asker, request, artifact)
            if index is None:
                return Elsewhere()
            data = await self._read(artifact, index)
            handed_over = True
            return Sending(ChunkReply(index=index, data=data), turn.ended, turn.cut)
        finally:
            if not handed_over:
                turn.ended(sent=False)

    def _has(self, artifact: Artifact, index: int) -> bool:
        return bool((self._store.have(artifact.id) or 0) >> index & 1)

    def _rank(self, asker: str, request: ChunkRequest, artifact: Artifact) -> int | None:
        """When to serve it; None: somebody else should."""
        rank: int | None = FRESH
        if self._hub is not None:
            rank = self._hub_rank(asker, request, artifact)
        elif request.index is None:
            raise PeerRefusedError("only a hub picks; name a chunk.", code="not_a_hub")
        if rank is not None and artifact.manifest.version < self._shelf.newest(
            artifact.manifest.kind
        ):
            rank += _OLDER
        return rank

    def _hub_rank(self, asker: str, request: ChunkRequest, artifact: Artifact) -> int | None:
        scatter, now = self._scatter(artifact), trio.current_time()
        if request.index is None:
            lacks = _bits(request.lacks, artifact)
            return scatter.rank(
                asker, lacks, insist=request.insist, backlog_s=request.backlog_s, now=now
            )
        # spare copies are for an uplink that has nothing new to send
        if self._turns.uploads.waiting(FRESH_LATER):
            return None
        return SPARE if scatter.may_spare(asker, request.index, now=now) else None

    def _pick(self, asker: str, request: ChunkRequest, artifact: Artifact) -> int | None:
        """Which chunk it is, decided when its turn has come."""
        if self._hub is None:
            return request.index
        scatter, now = self._scatter(artifact), trio.current_time()
        if request.index is None:
            lacks = _bits(request.lacks, artifact)
            return scatter.pick(asker, lacks, insist=request.insist, now=now)
        return request.index if scatter.spare(asker, request.index, now=now) else None

    def _scatter(self, artifact: Artifact) -> Scatter:
        scatter = self._scatters.get(artifact.id)
        if scatter is None:
            scatter = self._scatters[artifact.id] = Scatter(artifact.layout.count)
        scatter.keep_only(self._peer.connected())
        return scatter

    async def _read(self, artifact: Artifact, index: int) -> memoryview:
        fetch = self._shelf.fetches.get(artifact.id)
        kept = None if fetch is None else fetch.recent(index)
        data: bytes | memoryview | None = kept
        try:
            if kept is None:
                data = await trio.to_thread.run_sync(self._store.read_chunk, artifact.id, index)
        except ChunkError as error:
            _log.warning("%s", error)
            self._damage(artifact.id)
            data = None
        if data is None:
            raise PeerRefusedError(f"chunk {index} is not here.", code="not_here")
        self._stats.bytes_sent[artifact.manifest.kind] += len(data)
        if artifact.id in self._shelf.offered:  # not withdrawn while it was read
            self._stats.bytes_sent_of[artifact.id] += len(data)
        return memoryview(data)

    def _damage(self, artifact_id: bytes) -> None:
        if self._shelf.offered.pop(artifact_id, None) is not None and self._damaged is not None:
            self._damaged(artifact_id)

    # --- introductions --------------------------------------------------------------------------

    def _seen(self, artifact_id: bytes, asker: str) -> None:
        if self._hub is not None and artifact_id in self._shelf.offered:
            seekers = self._seekers[artifact_id]
            seekers.add(asker)
            if len(seekers) > MAX_SEEKERS:
                seekers &= self._peer.connected()

    def _answer_peers(self, asker: str, artifact_id: bytes) -> PeersReply:
        if self._hub is None:
            raise PeerRefusedError("only a hub introduces nodes.", code="not_a_hub")
        if artifact_id not in self._shelf.offered:
            raise PeerRefusedError("this artifact is not served here.", code="unknown_artifact")
        self._seen(artifact_id, asker)
        seekers = self._seekers[artifact_id]
        seekers &= self._peer.connected()
        found = [self._hub.addresses_of(peer) for peer in seekers - {asker}]
        dialable = [addresses for addresses in found if addresses]
        return PeersReply(peers=tuple(random.sample(dialable, min(MAX_INTRODUCED, len(dialable)))))


def _bits(data: bytes, artifact: Artifact) -> int:
    try:
        return bitmap.from_bytes(data, artifact.layout.count)
    except WireError as error:
        raise PeerRefusedError(error.message, code="bad_message") from error
