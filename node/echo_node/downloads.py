"""Artifacts on their way to this node: fetched, shown while they come, and told to the hub.

Promises: what `obtain` returns is complete and was read through since the program started; the hub
is told once of each artifact that was fetched, and a hub that cannot be told holds up nothing.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from pathlib import Path

import trio

from echo_node.events import Event, Fetched
from echo_node.hub import Hub
from echo_node.notice import Notice
from echo_p2p.artifact.manifest import Artifact
from echo_p2p.artifact.store import Store
from echo_p2p.errors import ChunkError, NetError
from echo_p2p.swarm.exchange import Exchange
from echo_p2p.swarm.fetch import Progress
from echo_p2p.wire import Obtained

RATE_WINDOW_S = 10.0
MOST_UNTOLD = 16
_READING_EVERY_S = 0.25
_FETCH_GRACE_S = 60.0
_SLOWEST_BYTES_PER_S = 50e3

log = logging.getLogger(__name__)


def fetch_deadline_s(size: int) -> float:
    """Time in which an artifact of `size` bytes must have come."""
    return _FETCH_GRACE_S + size / _SLOWEST_BYTES_PER_S


def size_of(artifact: Artifact) -> int:
    """Bytes of all its files."""
    return artifact.layout.total_bytes


def name_of(artifact: Artifact) -> str:
    """What a volunteer knows it as."""
    if artifact.manifest.kind == "base":
        return "the base model"
    if artifact.manifest.kind == "delta":
        return f"the delta to version {artifact.manifest.version}"
    return f"version {artifact.manifest.version}"


class Download:
    """One artifact's progress, for people and the hub. Pure; `now` is of one clock, in seconds."""

    def __init__(self, artifact: Artifact, now: float) -> None:
        self._artifact = artifact
        self._began = now
        self._readings: deque[tuple[float, int]] = deque([(now, 0)])
        self._last: Progress | None = None

    def at(self, progress: Progress, now: float) -> Fetched:
        """How far it has come."""
        self._last = progress
        rate = self._rate(progress.done_bytes - progress.resumed_bytes, now)
        lacking = progress.total_bytes - progress.done_bytes
        return Fetched(
            what=name_of(self._artifact),
            done_bytes=progress.done_bytes,
            total_bytes=progress.total_bytes,
            from_hub_bytes=progress.from_hub_bytes,
            from_peers_bytes=progress.from_peers_bytes,
            resumed_bytes=progress.resumed_bytes,
            bytes_per_s=round(rate),
            elapsed_s=round(now - self._began, 2),
            left_s=round(lacking / rate, 1) if rate else None,
        )

    def obtained(self, artifact: Artifact, now: float) -> Obtained | None:
        """What to tell the hub of what was got by it; None if nothing had to be fetched."""
        if self._last is None:
            return None
        return Obtained(
            artifact=artifact.id,
            seconds=now - self._began,
            from_hub=self._last.from_hub_bytes,
            from_peers=self._last.from_peers_bytes,
        )

    def _rate(self, came: int, now: float) -> float:
        """Bytes a second over about the last `RATE_WINDOW_S`."""
        readings = self._readings
        while len(readings) > 1 and readings[1][0] <= now - RATE_WINDOW_S:
            readings.popleft()
        then, had = readings[0]
        if now - readings[-1][0] >= _READING_EVERY_S:
            readings.append((now, came))
        return (came - had) / max(now - then, 1e-6)


class Downloads:
    """All artifacts that a node fetches."""

    def __init__(
        self, store: Store, exchange: Exchange, notice: Notice, report: Callable[[Event], None]
    ) -> None:
        self._store = store
        self._exchange = exchange
        self._notice = notice
        self._report = report
        self._untold: deque[Obtained] = deque(maxlen=MOST_UNTOLD)

    async def obtain(self, artifact: Artifact, hub: str) -> Path:
        """Fetch what is lacking of an artifact, from this hub and from nodes; its folder.

        One that is complete on disk is read through first: what has gone bad there since it came
        is found before it is used, and fetched again.
        """
        if self._store.path(artifact.id) is not None:
            await trio.to_thread.run_sync(_read_through, self._store, artifact)
        path, download = await self.fetch(artifact, hub)
        self.note(artifact, download)
        return path

    async def fetch(self, artifact: Artifact, hub: str) -> tuple[Path, Download]:
        """The same without a look at what is here, and the hub is not to be told yet."""
        download = Download(artifact, trio.current_time())
        path = await self._exchange.fetch(
            artifact,
            hub,
            deadline_s=fetch_deadline_s(size_of(artifact)),
            progress=lambda so_far: self._report(download.at(so_far, trio.current_time())),
        )
        return path, download

    def note(self, artifact: Artifact, download: Download) -> None:
        """An artifact is here by a download of it, or of the delta to it: the hub is to know."""
        obtained = download.obtained(artifact, trio.current_time())
        if obtained is not None:
            self._untold.append(obtained)
            self._notice.tell()

    async def tell(self, hub: Hub) -> None:
        """Tell the hub what it was not told yet; what cannot be told is let go."""
        while self._untold:
            obtained = self._untold.popleft()
            try:
                await hub.obtained(obtained)
            except NetError as error:
                log.info("the hub could not be told of a download: %s", error)

    async def tell_all(self, hub: Hub) -> None:
        """Tell the hub of each download as it ends, for the length of a session."""
        while True:
            await self._notice.until(lambda: self._untold)
            await self.tell(hub)


def _read_through(store: Store, artifact: Artifact) -> None:
    try:
        for index in range(artifact.layout.count):
            store.read_chunk(artifact.id, index)
    except ChunkError as error:
        log.warning("%s It is fetched again.", error.message)
