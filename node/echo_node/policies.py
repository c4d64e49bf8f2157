"""The policy versions of a run on this machine: which is newest, which is here, which is in use.

Invariants: versions only rise; a version is `ready` only whole; the one that is active and the one
that is ready are pinned in the store. Older ones are deleted, but for the last, which nodes that
are a little behind may still ask for.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import trio

from echo_node.downloads import Downloads
from echo_node.notice import Notice
from echo_p2p.artifact.manifest import Artifact
from echo_p2p.artifact.store import Store
from echo_p2p.errors import ManifestError, RollbackError
from echo_p2p.swarm.exchange import Exchange

KEPT_VERSIONS = 2


class Policies:
    """Follows the newest version; `notice` is told whenever something here changes."""

    def __init__(
        self, store: Store, exchange: Exchange, downloads: Downloads, notice: Notice
    ) -> None:
        self.ready: int | None = None
        """Newest version on disk that was not found faulty."""
        self.active: int | None = None
        """Version the engine has."""
        self._store = store
        self._exchange = exchange
        self._downloads = downloads
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
            await self._downloads.obtain(artifact, hub)
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
