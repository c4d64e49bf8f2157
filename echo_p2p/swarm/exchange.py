"""Chunks in and out: what a node or a hub serves, and the fetches it has running.

Promises: only verified chunks leave, of artifacts that were offered or are being fetched, from the
moment each is on disk; news of a chunk goes out at once, to whoever is waiting for it; a request
holds one chunk in memory, and one peer has at most `CONCURRENCY` requests in progress. The hub
also picks what to send (see `scatter`) and introduces nodes to each other.
"""

from __future__ import annotations

import logging
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import trio

from echo_p2p.artifact import bitmap
from echo_p2p.artifact.manifest import Artifact
from echo_p2p.artifact.store import Store
from echo_p2p.errors import ChunkError, DeadlineError, PeerRefusedError, StoreError, WireError
from echo_p2p.net.host import Peer
from echo_p2p.net.rpc import answer
from echo_p2p.net.stream import Remote
from echo_p2p.swarm.fetch import Fetch, Progress, Stats
from echo_p2p.swarm.scatter import Scatter
from echo_p2p.wire import (
    KIB,
    MAX_CHUNKS,
    SWARM_PROTOCOL,
    ChunkReply,
    ChunkRequest,
    Elsewhere,
    HaveReply,
    HaveRequest,
    Message,
    PeersReply,
    PeersRequest,
    SwarmRequest,
)

CONCURRENCY = 8  # a few chunks and a few `HaveRequest`s held open
ANSWER_S = 45.0  # longer than the longest `HaveRequest.wait_s`
MAX_INTRODUCED = 32
MAX_SEEKERS = 1024  # then those that have left are forgotten

_log = logging.getLogger(__name__)


@dataclass
class HubSide:
    """What the exchange of a hub does more. `addresses_of`: where a node can be dialled."""

    addresses_of: Callable[[str], tuple[str, ...]] = lambda _: ()


class Exchange:
    """The swarm's side of one program; answers on SWARM_PROTOCOL from its construction on.

    Args:
        hub: given by a hub; a node leaves it out.
        damaged: called with the id of an offered artifact that turned out corrupt on disk; it is
            a partial one now, to be fetched or added again.
    """

    def __init__(
        self,
        peer: Peer,
        store: Store,
        *,
        hub: HubSide | None = None,
        damaged: Callable[[bytes], None] | None = None,
    ) -> None:
        self.stats = Stats()
        self._peer = peer
        self._store = store
        self._hub = hub
        self._damaged = damaged
        self._offered: dict[bytes, Artifact] = {}
        self._wanted: set[bytes] = set()
        self._fetches: dict[bytes, Fetch] = {}
        self._distrusted: set[str] = set()
        self._changed = trio.Event()
        self._watchers: defaultdict[bytes, Counter[str]] = defaultdict(Counter)
        self._scatters: defaultdict[bytes, Scatter] = defaultdict(Scatter)
        self._seekers: defaultdict[bytes, set[str]] = defaultdict(set)
        answer(
            peer,
            SWARM_PROTOCOL,
            SwarmRequest,
            self._answer,
            max_request=MAX_CHUNKS // 8 + KIB,
            deadline_s=ANSWER_S,
            concurrency=CONCURRENCY,
        )

    def offer(self, artifact_id: bytes) -> None:
        """Serve an artifact that is complete in the store."""
        artifact = self._store.get(artifact_id)
        if artifact is None:
            raise StoreError(f"the artifact {artifact_id.hex()[:12]} is not complete here.")
        for known in [known for known in self._offered if self._store.get(known) is None]:
            self.withdraw(known)  # the store has removed it meanwhile
        self._offered[artifact_id] = artifact
        self._notify()

    def withdraw(self, artifact_id: bytes) -> None:
        """Serve it no more."""
        self._offered.pop(artifact_id, None)
        self._scatters.pop(artifact_id, None)
        self._seekers.pop(artifact_id, None)
        self.stats.bytes_sent_of.pop(artifact_id, None)

    async def fetch(
        self,
        artifact: Artifact,
        hub: str | None,
        *,
        deadline_s: float,
        progress: Callable[[Progress], None] | None = None,
    ) -> Path:
        """Make an artifact complete here, offer it, and return the folder of its files.

        What is here already is not fetched again. While it comes in, others are served from it.

        Args:
            hub: peer id of the hub, which must be connected; None asks connected peers only.

        Raises:
            DeadlineError: not complete in time. What came stays, for the next try.
            StoreError: no room, or the disk failed.
            ManifestError: the manifest contradicts itself.
        """
        with trio.move_on_after(deadline_s):
            return await self._ensure(artifact, hub, progress)
        raise self._late(artifact, deadline_s)

    def _late(self, artifact: Artifact, deadline_s: float) -> DeadlineError:
        lacks = bitmap.full(artifact.layout.count) & ~(self._store.have(artifact.id) or 0)
        return DeadlineError(
            f"{artifact} is not complete after {deadline_s:g} s; "
            f"{lacks.bit_count()} of {artifact.layout.count} chunks are lacking.",
            fix="Is the hub reachable?",
        )

    async def _ensure(
        self, artifact: Artifact, hub: str | None, progress: Callable[[Progress], None] | None
    ) -> Path:
        while artifact.id in self._wanted:  # whoever asked first fetches it for all
            await self._changed.wait()
        self._wanted.add(artifact.id)
        try:
            path = self._store.path(artifact.id)
            if path is None:
                path = await self._fetch(artifact, hub, progress)
            self.offer(artifact.id)
            return path
        finally:
            self._wanted.discard(artifact.id)
            self._notify()

    async def _fetch(
        self, artifact: Artifact, hub: str | None, progress: Callable[[Progress], None] | None
    ) -> Path:
        with await trio.to_thread.run_sync(self._store.begin, artifact) as partial:
            try:
                while True:
                    self._fetches[artifact.id] = fetch = Fetch(
                        self._peer,
                        partial,
                        hub=hub,
                        stats=self.stats,
                        distrusted=self._distrusted,
                        arrived=self._notify,
                        progress=progress,
                    )
                    self._notify()
                    await fetch.run(interested=list(self._watchers.get(artifact.id, ())))
                    try:
                        return await trio.to_thread.run_sync(partial.finish)
                    except ChunkError as error:
                        _log.warning("%s It is fetched again.", error)
            finally:
                self._fetches.pop(artifact.id, None)

    def _notify(self) -> None:
        """Wake everybody who waits for something to change here."""
        self._changed.set()
        self._changed = trio.Event()

    # --- answers --------------------------------------------------------------------------------

    async def _answer(self, remote: Remote, request: Message) -> Message:
        if not self._peer.limits.gives:
            raise PeerRefusedError("this node gives no chunks.", code="gives_nothing")
        if isinstance(request, HaveRequest):
            return await self._answer_have(remote.peer_id, request)
        if isinstance(request, ChunkRequest):
            return await self._answer_chunk(remote.peer_id, request)
        assert isinstance(request, PeersRequest)
        return self._answer_peers(remote.peer_id, request.artifact)

    async def _answer_have(self, asker: str, request: HaveRequest) -> HaveReply:
        with self._watching(request.artifact, asker), trio.move_on_after(request.wait_s):
            while not self._news(request):
                await self._changed.wait()
        artifact = self._served(request.artifact)
        have = self._store.have(request.artifact)
        if artifact is None or have is None:
            return HaveReply(have=b"")
        return HaveReply(have=bitmap.to_bytes(have, artifact.layout.count))

    @contextmanager
    def _watching(self, artifact_id: bytes, asker: str) -> Iterator[None]:
        """Know, for as long as it waits, that the asker is interested."""
        self._seen(artifact_id, asker)
        fetch = self._fetches.get(artifact_id)
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
        artifact = self._served(request.artifact)
        if artifact is None:
            return 0
        known = self._bits(request.known, artifact)
        return (self._store.have(request.artifact) or 0) & ~known

    def _served(self, artifact_id: bytes) -> Artifact | None:
        fetch = self._fetches.get(artifact_id)
        return self._offered.get(artifact_id) if fetch is None else fetch.artifact

    @staticmethod
    def _bits(data: bytes, artifact: Artifact) -> int:
        try:
            return bitmap.from_bytes(data, artifact.layout.count)
        except WireError as error:
            raise PeerRefusedError(error.message, code="bad_message") from error

    async def _answer_chunk(self, asker: str, request: ChunkRequest) -> ChunkReply | Elsewhere:
        artifact = self._served(request.artifact)
        if artifact is None:
            raise PeerRefusedError("this artifact is not served here.", code="unknown_artifact")
        self._seen(request.artifact, asker)
        index = request.index
        if index is None:
            index = self._pick(asker, request, artifact)
            if index is None:
                return Elsewhere()
        try:
            data = await trio.to_thread.run_sync(self._store.read_chunk, request.artifact, index)
        except ChunkError as error:
            _log.warning("%s", error)
            self._damage(request.artifact)
            data = None
        if data is None:
            raise PeerRefusedError(f"chunk {index} is not here.", code="not_here")
        self.stats.bytes_sent[artifact.manifest.kind] += len(data)
        if artifact.id in self._offered:  # not withdrawn while it was read
            self.stats.bytes_sent_of[artifact.id] += len(data)
        return ChunkReply(index=index, data=data)

    def _pick(self, asker: str, request: ChunkRequest, artifact: Artifact) -> int | None:
        if self._hub is None:
            raise PeerRefusedError("only a hub picks; name a chunk.", code="not_a_hub")
        return self._scatters[artifact.id].pick(
            asker,
            self._bits(request.lacks, artifact),
            insist=request.insist,
            present=self._peer.connected(),
        )

    def _damage(self, artifact_id: bytes) -> None:
        if self._offered.pop(artifact_id, None) is not None and self._damaged is not None:
            self._damaged(artifact_id)

    def _seen(self, artifact_id: bytes, asker: str) -> None:
        if self._hub is not None and artifact_id in self._offered:
            seekers = self._seekers[artifact_id]
            seekers.add(asker)
            if len(seekers) > MAX_SEEKERS:
                seekers &= self._peer.connected()

    def _answer_peers(self, asker: str, artifact_id: bytes) -> PeersReply:
        if self._hub is None:
            raise PeerRefusedError("only a hub introduces nodes.", code="not_a_hub")
        if artifact_id not in self._offered:
            raise PeerRefusedError("this artifact is not served here.", code="unknown_artifact")
        self._seen(artifact_id, asker)
        seekers = self._seekers[artifact_id]
        seekers &= self._peer.connected()
        found = [self._hub.addresses_of(peer) for peer in seekers - {asker}]
        dialable = [addresses for addresses in found if addresses]
        return PeersReply(peers=tuple(random.sample(dialable, min(MAX_INTRODUCED, len(dialable)))))
