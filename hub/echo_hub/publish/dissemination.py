"""Hears from nodes what they have, and who sent them bad chunks, and keeps the record of both.

The shell around `spread` and `accusations`. Promises: nothing a node says here changes what it or
another may do, but for what `accusations` allows; what is shown is in the ledger a second or two
later.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from contextlib import suppress

import trio

from echo_hub.ledger.ledger import Ledger, Recovered
from echo_hub.publish.accusations import Accusations
from echo_hub.publish.publisher import Publisher
from echo_hub.publish.spread import OPEN_VERSIONS, Spread, Spreads
from echo_p2p.artifact.manifest import Artifact
from echo_p2p.errors import IdentityError
from echo_p2p.identity import peer_id_of, public_key_of
from echo_p2p.net.host import Remote
from echo_p2p.nursery import open_nursery
from echo_p2p.swarm.exchange import Exchange
from echo_p2p.wire import BadChunkReport, Obtained

WRITE_EVERY_S = 1.0
_MOST_UNREAD = 64

log = logging.getLogger(__name__)


class Dissemination:
    """What the hub knows of its artifacts' way to the nodes.

    Args:
        in_session: peer ids of the nodes that hear of new versions now.
        has_standing: whether a key's word counts (see `accusations`).
        clock: Unix seconds.
    """

    def __init__(
        self,
        *,
        ledger: Ledger,
        exchange: Exchange,
        recovered: Recovered,
        in_session: Callable[[], Collection[str]],
        has_standing: Callable[[bytes], bool],
        clock: Callable[[], float],
    ) -> None:
        self._sent_of = exchange.stats.bytes_sent_of
        self._deltas: dict[bytes, bytes] = {}
        self.spreads = Spreads(self._sent_for, recovered.spreads)
        self._accusations = Accusations(recovered.accusations)
        self._ledger = ledger
        self._in_session = in_session
        self._has_standing = has_standing
        self._clock = clock
        self.on_obtained: Callable[[bytes, float], None] = lambda node, seconds: None
        """Hears which node has a version, how long after it was announced to it."""
        self._newest: bytes | None = None  # an adapter that is not told of yet
        self._to_tell, self.finished = trio.open_memory_channel[Spread](_MOST_UNREAD)
        """`finished`: each version, once all nodes have it or the next one is out."""

    async def run(self, publisher: Publisher) -> None:
        """Note each new version and keep the ledger up to date, until cancelled."""
        async with open_nursery() as nursery:
            nursery.start_soon(self._note_versions, publisher)
            while True:
                await trio.sleep(WRITE_EVERY_S)
                await self.write()

    async def write(self) -> None:
        """Bring the ledger up to date."""
        changed = self.spreads.take_changed()
        if changed:
            await self._ledger.put_spreads(changed)

    async def _note_versions(self, publisher: Publisher) -> None:
        version = -1
        while True:
            newer = await publisher.wait_newer(version)
            version = newer.version
            self.announce(newer.artifact, newer.delta)
            closed = self.spreads.close_old()
            if closed:
                await self._ledger.put_spreads(closed)

    def _sent_for(self, artifact: bytes) -> int:
        """Bytes sent of an artifact and of the delta to it."""
        delta = self._deltas.get(artifact)
        return self._sent_of[artifact] + (0 if delta is None else self._sent_of[delta])

    def announce(self, artifact: Artifact, delta: Artifact | None = None) -> None:
        """An artifact can be had from now on, perhaps by a delta."""
        manifest = artifact.manifest
        if delta is not None:
            self._deltas[artifact.id] = delta.id
            for old in list(self._deltas)[:-OPEN_VERSIONS]:
                del self._deltas[old]
        spread = Spread(
            artifact=artifact.id,
            kind="base" if manifest.kind == "base" else "adapter",
            version=manifest.version,
            size=artifact.layout.total_bytes,
            at=self._clock(),
        )
        self.spreads.announce(spread, self._in_session())
        if manifest.kind == "adapter":
            self._finish()
            self._newest = artifact.id

    def _finish(self) -> None:
        """Whatever becomes of the newest version now, it is told of."""
        spread = None if self._newest is None else self.spreads.now(self._newest)
        self._newest = None
        if spread is not None:
            with suppress(trio.WouldBlock):  # nobody reads
                self._to_tell.send_nowait(spread)

    def obtained(self, remote: Remote, message: Obtained, greeted_at: float) -> None:
        """A node says that it has an artifact."""
        now = self._clock()
        counts = self.spreads.obtained(
            message.artifact,
            remote.peer_id,
            from_hub=message.from_hub,
            from_peers=message.from_peers,
            greeted_at=greeted_at,
            now=now,
        )
        spread = self.spreads.now(message.artifact)
        if counts and spread is not None and spread.kind == "adapter":
            self.on_obtained(remote.public_key, now - max(spread.at, greeted_at))
        newest = None if self._newest is None else self.spreads.now(self._newest)
        if newest is not None and newest.everywhere:
            self._finish()

    async def bad_chunk(self, remote: Remote, report: BadChunkReport) -> None:
        """A node says that another sent it a bad chunk."""
        try:
            accused = public_key_of(report.peer)
        except IdentityError:
            return
        if self._accusations.add(accused, remote.public_key):
            log.warning(
                "%s says that %s sent it a bad chunk %d of %s",
                remote.peer_id, report.peer, report.index, report.artifact.hex()[:12],
            )  # fmt: skip
            await self._ledger.add_accusation(accused, remote.public_key)
            if self.is_shunned(accused):
                log.warning("%s is introduced to nobody any more.", peer_id_of(accused))

    def is_shunned(self, key: bytes) -> bool:
        """Do so many nodes say of a key that it sends bad chunks, that it is to be introduced to
        nobody?"""
        return self._accusations.believed(key, self._has_standing)
