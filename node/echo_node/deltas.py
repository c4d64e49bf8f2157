"""A version by its delta: from the one before it, if that is here.

Promises: the outcome is the same bytes as the full snapshot, or the full snapshot is fetched; what
a delta failed by is said, and nothing is left of it. A delta that served is passed on to others,
as the snapshot made of it is.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import trio

from echo_node.downloads import Downloads, size_of
from echo_node.events import Event, Trouble
from echo_node.hub import Offer
from echo_p2p.artifact.manifest import Artifact
from echo_p2p.artifact.rebuild import rebuild
from echo_p2p.artifact.store import Store
from echo_p2p.errors import ArtifactError, NetError
from echo_p2p.swarm.exchange import Exchange


class Deltas:
    """Obtains versions in the shortest way. `saved_bytes`: what deltas were smaller than snapshots,
    since the program started."""

    def __init__(
        self,
        store: Store,
        exchange: Exchange,
        downloads: Downloads,
        report: Callable[[Event], None],
    ) -> None:
        self.saved_bytes = 0
        self._store = store
        self._exchange = exchange
        self._downloads = downloads
        self._report = report

    async def obtain(self, offer: Offer, hub: str) -> None:
        """Make the offered version complete here, from this hub and from nodes."""
        if offer.delta is not None and self._is_of_use(offer.delta, offer.adapter):
            try:
                await self._rebuild(offer.delta, offer.adapter, hub)
            except (ArtifactError, NetError) as error:
                self._report(
                    Trouble(
                        message=f"The delta to version {offer.version} is of no use, and the full "
                        f"snapshot is fetched: {error.message}"
                    )
                )
                await trio.to_thread.run_sync(self.drop, offer.delta)
            else:
                return
        await self._downloads.obtain(offer.adapter, hub)

    def _is_of_use(self, delta: Artifact, adapter: Artifact) -> bool:
        assert delta.manifest.delta is not None
        parent = self._store.path(delta.manifest.delta.parent)
        return parent is not None and self._store.path(adapter.id) is None

    async def _rebuild(self, delta: Artifact, adapter: Artifact, hub: str) -> None:
        _, download = await self._downloads.fetch(delta, hub)
        with closing(rebuild(self._store, delta, adapter)) as work:
            while await trio.to_thread.run_sync(next, work, None) is not None:
                pass  # a chunk at a time, so that a newer version can stop it
        self.saved_bytes += size_of(adapter) - size_of(delta)
        self._downloads.note(adapter, download)
        await self._downloads.fetch(adapter, hub)  # it is whole, and is offered now

    def drop(self, artifact: Artifact) -> None:
        """Neither keep nor serve an artifact any longer."""
        self._exchange.withdraw(artifact.id)
        self._store.remove(artifact.id)
