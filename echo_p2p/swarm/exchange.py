"""Chunks in and out: what a node or a hub serves (`answers`), and the fetches it has running.

Promises: an artifact is fetched once, for all who ask for it here; whoever stops waiting for a
fetch stops it, and what came stays for the next try; what was fetched is offered; one peer has at
most `CONCURRENCY` requests in progress here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import trio

from echo_p2p.artifact import bitmap
from echo_p2p.artifact.manifest import Artifact
from echo_p2p.artifact.store import Store
from echo_p2p.errors import ChunkError, DeadlineError, StoreError
from echo_p2p.net.host import Peer
from echo_p2p.net.rpc import answer
from echo_p2p.swarm.answers import Answers, HubSide, Shelf
from echo_p2p.swarm.fetch import Fetch, Progress, Stats
from echo_p2p.wire import KIB, MAX_CHUNKS, SWARM_PROTOCOL, SwarmRequest

__all__ = ["Exchange", "HubSide"]

CONCURRENCY = 24  # chunks, most of them waiting for their turn, and `HaveRequest`s held open
ANSWER_S = 45.0  # longer than the longest `HaveRequest.wait_s`

_log = logging.getLogger(__name__)


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
        self._shelf = Shelf()
        self._answers = Answers(peer, store, self._shelf, self.stats, hub=hub, damaged=damaged)
        self._wanted: set[bytes] = set()
        self._distrusted: set[str] = set()
        answer(
            peer,
            SWARM_PROTOCOL,
            SwarmRequest,
            self._answers.answer,
            max_request=MAX_CHUNKS // 8 + KIB,
            deadline_s=ANSWER_S,
            concurrency=CONCURRENCY,
        )

    def offer(self, artifact_id: bytes) -> None:
        """Serve an artifact that is complete in the store."""
        artifact = self._store.get(artifact_id)
        if artifact is None:
            raise StoreError(f"the artifact {artifact_id.hex()[:12]} is not complete here.")
        for known in [known for known in self._shelf.offered if self._store.get(known) is None]:
            self.withdraw(known)  # the store has removed it meanwhile
        self._shelf.offered[artifact_id] = artifact
        self._shelf.notify()

    def withdraw(self, artifact_id: bytes) -> None:
        """Serve it no more."""
        self._shelf.offered.pop(artifact_id, None)
        self._answers.forget(artifact_id)
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
            await self._shelf.changed.wait()
        self._wanted.add(artifact.id)
        try:
            path = self._store.path(artifact.id)
            if path is None:
                path = await self._fetch(artifact, hub, progress)
            self.offer(artifact.id)
            return path
        finally:
            self._wanted.discard(artifact.id)
            self._shelf.notify()

    async def _fetch(
        self, artifact: Artifact, hub: str | None, progress: Callable[[Progress], None] | None
    ) -> Path:
        with await trio.to_thread.run_sync(self._store.begin, artifact) as partial:
            try:
                while True:
                    self._shelf.fetches[artifact.id] = fetch = Fetch(
                        self._peer,
                        partial,
                        hub=hub,
                        stats=self.stats,
                        distrusted=self._distrusted,
                        arrived=self._shelf.notify,
                        progress=progress,
                        backlog_s=self._answers.backlog_s,
                    )
                    self._shelf.notify()
                    await fetch.run(interested=self._answers.watching(artifact.id))
                    try:
                        return await trio.to_thread.run_sync(partial.finish)
                    except ChunkError as error:
                        _log.warning("%s It is fetched again.", error)
            finally:
                self._shelf.fetches.pop(artifact.id, None)
