"""The policy versions of a run on this machine: which is newest, which is here, which is in use.

Invariants: versions only rise; a version is `ready` only whole; the one that is active and the one
that is ready are pinned in the store. Older ones are deleted, but for the last, which nodes that
are a little behind may still ask for, and which the next delta starts from.

A newer version stops the fetch of an older one at once, and nothing of that is kept. But a node
that is too slow for the pace of publication would so fetch for ever and have nothing: after
`STOPPED_IN_A_ROW` fetches that were stopped, one is let through to its end.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import trio

from echo_node.deltas import Deltas
from echo_node.hub import Offer
from echo_node.notice import Notice
from echo_p2p.artifact.manifest import Artifact
from echo_p2p.artifact.store import Store
from echo_p2p.errors import FarVersionError, ManifestError, RollbackError
from echo_p2p.nursery import open_nursery
from echo_p2p.swarm.exchange import Exchange

KEPT_VERSIONS = 2
STOPPED_IN_A_ROW = 3
FURTHEST_AHEAD = 1_000_000
"""Versions by which a run may have moved on unseen: at one a second, 11 days."""


def check_follows(new: Artifact, seen: Artifact | None) -> None:
    """Whether a version may be the newest after another.

    Raises:
        RollbackError: it is older.
        ManifestError: it is the same version with other bytes.
        FarVersionError: it is further ahead than any run gets.
    """
    if seen is None:
        return
    before, now = seen.manifest.version, new.manifest.version
    if now < before:
        raise RollbackError(
            f"the hub offers version {now} as its newest, after version {before}.",
            fix="Ask its operator whether the run was set back; then join again.",
        )
    if now == before and new.manifest.content != seen.manifest.content:
        raise ManifestError(f"the hub offers another version {now} than before.")
    if now > before + FURTHEST_AHEAD:
        raise FarVersionError(
            f"the hub offers version {now} after version {before}; that is passed over.",
            fix="If the run really is that far, join again.",
        )


class Policies:
    """Follows the newest version; `notice` is told whenever something here changes."""

    def __init__(self, store: Store, exchange: Exchange, deltas: Deltas, notice: Notice) -> None:
        self.ready: int | None = None
        """Newest version on disk that was not found faulty."""
        self.active: int | None = None
        """Version the engine has."""
        self.deltas = deltas
        self._store = store
        self._exchange = exchange
        self._notice = notice
        self._newest: Offer | None = None
        self._faulty = -1
        self._held: dict[int, tuple[Path, ExitStack]] = {}

    @property
    def newest(self) -> int | None:
        """Newest version that the hub is known to have."""
        return None if self._newest is None else self._newest.version

    def offer(self, offer: Offer) -> None:
        """Learn of a version. An error of `check_follows` if it is not to be believed."""
        check_follows(offer.adapter, None if self._newest is None else self._newest.adapter)
        self._newest = offer
        self._notice.tell()

    async def follow(self, hub: str) -> None:
        """Fetch each newest version in turn, from the hub with this peer id and from nodes."""
        stopped = 0
        while True:
            await self._notice.until(self._is_behind)
            offer = self._newest
            assert offer is not None
            if await self._obtain(offer, hub, to_the_end=stopped >= STOPPED_IN_A_ROW):
                stopped = 0
                self._hold(offer.adapter)
                await trio.to_thread.run_sync(self._tidy, offer)
            else:
                stopped += 1
                await trio.to_thread.run_sync(self._abandon, offer)

    async def _obtain(self, offer: Offer, hub: str, *, to_the_end: bool) -> bool:
        """False: there is a newer version, and the fetch was stopped for it."""
        done = False
        async with open_nursery() as nursery:
            if not to_the_end:
                nursery.start_soon(self._stop_when_outdated, offer, nursery.cancel_scope)
            await self.deltas.obtain(offer, hub)
            done = True
            nursery.cancel_scope.cancel()
        return done

    async def _stop_when_outdated(self, offer: Offer, fetch: trio.CancelScope) -> None:
        await self._notice.until(
            lambda: self._newest is not None and self._newest.version > offer.version
        )
        fetch.cancel()

    def _abandon(self, offer: Offer) -> None:
        """Keep nothing of a fetch that was stopped."""
        for artifact in offer.artifacts:
            self.deltas.drop(artifact)

    def _is_behind(self) -> bool:
        have = max(self._faulty, -1 if self.ready is None else self.ready)
        return self._newest is not None and self._newest.version > have

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

    def _hold(self, adapter: Artifact) -> None:
        pin = ExitStack()
        path = pin.enter_context(self._store.pin(adapter.id))
        self.ready = adapter.manifest.version
        self._held[self.ready] = (path, pin)
        self._let_go()

    def _let_go(self) -> None:
        for version in self._held.keys() - {self.ready, self.active}:
            self._held.pop(version)[1].close()
        self._notice.tell()

    def _tidy(self, newest: Offer) -> None:
        """Delete what of the run nobody here or elsewhere needs any more."""
        adapters = [a for a in self._store.complete() if newest.is_sibling(a, "adapter")]
        adapters.sort(key=lambda artifact: artifact.manifest.version)
        in_use = (self.ready, self.active)
        needless = [a for a in adapters[:-KEPT_VERSIONS] if a.manifest.version not in in_use]
        needless += [a for a in self._store.complete() if newest.is_sibling(a, "delta")]
        for kind in ("adapter", "delta"):  # what a killed or disconnected session left
            needless += [a for a in self._store.unfinished() if newest.is_sibling(a, kind)]
        for artifact in needless:
            if artifact.id not in [kept.id for kept in newest.artifacts]:
                self.deltas.drop(artifact)
