"""The policy versions of a run on this machine: which is newest, which is here, which is in use.

Invariants: versions only rise; a version is `ready` only whole; the one that is active and the one
that is ready are pinned in the store. Older ones are deleted, but for the last, which nodes that
are a little behind may still ask for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import trio

from echo_node.notice import Notice
from echo_p2p.artifact.manifest import Artifact
from echo_p2p.artifact.store import Store
from echo_p2p.errors import ChunkError, ManifestError, RollbackError
from echo_p2p.swarm.exchange import Exchange
from echo_p2p.swarm.fetch import Progress

_FETCH_GRACE_S = 60.0
_SLOWEST_BYTES_PER_S = 50e3
KEPT_VERSIONS = 2

log = logging.getLogger(__name__)


def fetch_deadline_s(size: int) -> float:
    """Time in which an artifact of `size` bytes must have come."""
    return _FETCH_GRACE_S + size / _SLOWEST_BYTES_PER_S


def size_of(artifact: Artifact) -> int:
    """Bytes of all its files."""
    return sum(file.size for file in artifact.manifest.files)


async def obtain(
    artifact: Artifact,
    hub: str,
    *,
    store: Store,
    exchange: Exchange,
    progress: Callable[[Progress], None] | None = None,
) -> Path:
    """Fetch what is lacking of an artifact; its folder.

    One that is complete on disk is read through first: what has gone bad there since it came is
    found before it is used, and fetched again.
    """
    if store.path(artifact.id) is not None:
        await trio.to_thread.run_sync(_read_through, store, artifact)
    deadline_s = fetch_deadline_s(size_of(artifact))
    return await exchange.fetch(artifact, hub, deadline_s=deadline_s, progress=progress)


def _read_through(store: Store, artifact: Artifact) -> None:
    try:
        for index in range(artifact.layout.count):
            store.read_chunk(artifact.id, index)
    except ChunkError as error:
        log.warning("%s It is fetched again.", error.message)


class Policies:
    """Follows the newest version; `notice` is told whenever something here changes."""

    def __init__(self, store: Store, exchange: Exchange, notice: Notice) -> None:
        self.ready: int | None = None
        """Newest version on disk that was not found faulty."""
        self.active: int | None = None
        """Version the engine has."""
        self._store = store
        self._exchange = exchange
        self._notice = notice
        self._newest: Artifact | None = None
        self._faulty = -1
        self._held: dict[int, tuple[Path, ExitStack]] = {}

    def offer(self, artifact: Artifact) -> None:
        """Learn of a version. RollbackError for one older than the newest already seen."""
        seen = self._newest
        if seen is not None:
            old, new = seen.manifest.version, artifact.manifest.version
            if new < old:
                raise RollbackError(
                    f"the hub offers version {new} as its newest, after version {old}.",
                    fix="Ask its operator whether the run was set back; then join again.",
                )
            if new == old and artifact.manifest.content != seen.manifest.content:
                raise ManifestError(f"the hub offers another version {new} than before.")
        self._newest = artifact
        self._notice.tell()

    async def follow(self, hub: str) -> None:
        """Fetch each newest version in turn, from the hub with this peer id and from nodes."""
        while True:
            await self._notice.until(self._is_behind)
            artifact = self._newest
            assert artifact is not None
            await obtain(artifact, hub, store=self._store, exchange=self._exchange)
            pin = ExitStack()
            path = pin.enter_context(self._store.pin(artifact.id))
            self.ready = artifact.manifest.version
            self._held[self.ready] = (path, pin)
            self._let_go()
            await trio.to_thread.run_sync(self._tidy, artifact)

    def _is_behind(self) -> bool:
        have = max(self._faulty, -1 if self.ready is None else self.ready)
        return self._newest is not None and self._newest.manifest.version > have

    def path(self, version: int) -> Path:
        """Folder of the version that is ready or active."""
        return self._held[version][0]

    def activated(self, version: int) -> None:
        """The engine has this version now."""
        self.active = version
        self._let_go()

    def refused(self, version: int) -> None:
        """The engine cannot use this version: go on with the active one until a newer comes."""
        self._faulty = max(self._faulty, version)
        if self.ready == version:
            self.ready = self.active
        self._let_go()

    def close(self) -> None:
        """Let go of all pins."""
        self.ready = self.active = None
        self._let_go()

    def _let_go(self) -> None:
        for version in self._held.keys() - {self.ready, self.active}:
            self._held.pop(version)[1].close()
        self._notice.tell()

    def _tidy(self, newest: Artifact) -> None:
        """Delete versions of the run that nobody here or elsewhere needs any more."""
        mine = [
            artifact
            for artifact in self._store.complete()
            if artifact.manifest.kind == "adapter"
            and artifact.manifest.run_id == newest.manifest.run_id
            and artifact.key == newest.key
        ]
        mine.sort(key=lambda artifact: artifact.manifest.version)
        for artifact in mine[:-KEPT_VERSIONS]:
            if artifact.manifest.version not in (self.ready, self.active):
                self._exchange.withdraw(artifact.id)
                self._store.remove(artifact.id)
