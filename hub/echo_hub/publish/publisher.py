"""Publishing a version: manifest, signature, store, ledger, and only then the network.

Invariants: what was announced is in the ledger, with the envelope that was announced, so after a
crash the same version is never announced with other bytes; versions only rise. A delta is announced
by the process that made it and no other: after a restart the newest version is offered without,
so that neither is a delta ever announced with other bytes. It saves time and is never needed; a
version whose delta cannot be made is published all the same.
"""

from __future__ import annotations

import logging
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import trio

from echo_hub.ledger.ledger import Ledger
from echo_p2p.artifact.disk import disk_errors
from echo_p2p.artifact.manifest import DELTA_FILE, Artifact, build_manifest
from echo_p2p.artifact.rebuild import make_delta
from echo_p2p.artifact.store import Store
from echo_p2p.errors import ArtifactError, ConfigError, RollbackError
from echo_p2p.identity import Identity
from echo_p2p.swarm.exchange import Exchange
from echo_p2p.wire import DeltaOf

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Published:
    """A version that the network knows, and the delta to it from the one before, if it has one."""

    version: int
    artifact: Artifact
    delta: Artifact | None = None

    @property
    def delta_envelope(self) -> bytes | None:
        return None if self.delta is None else self.delta.envelope

    @property
    def artifacts(self) -> list[Artifact]:
        return [self.artifact] if self.delta is None else [self.artifact, self.delta]


class Publisher:
    """Turns adapter folders into announced artifacts.

    Args:
        keep: the newest versions of which so many are served.
        deltas: folder for the deltas that are announced now, cleared at the start; None makes none.
    """

    def __init__(
        self,
        identity: Identity,
        run_id: str,
        chunk_bytes: int,
        *,
        store: Store,
        exchange: Exchange,
        ledger: Ledger,
        keep: int,
        deltas: Path | None = None,
    ) -> None:
        self._identity = identity
        self._run_id = run_id
        self._chunk_bytes = chunk_bytes
        self._store = store
        self._exchange = exchange
        self._ledger = ledger
        self._recent_kept = keep
        self._deltas = deltas
        self._recent: list[Published] = []
        self._changed = trio.Event()
        self._sources: dict[bytes, tuple[Artifact, Path]] = {}
        self._damaged, self._to_repair = trio.open_memory_channel[bytes](64)

    @property
    def latest(self) -> Published | None:
        return self._recent[-1] if self._recent else None

    async def wait_newer(self, version: int) -> Published:
        """The newest version once it is greater than `version`."""
        while self.latest is None or self.latest.version <= version:
            await self._changed.wait()
        return self.latest

    async def publish(self, version: int, adapter: Path) -> Published:
        """Sign, store, record and announce the adapter folder as `version`."""
        if self.latest is not None and version <= self.latest.version:
            raise RollbackError(
                f"version {version} cannot be published after version {self.latest.version}."
            )
        artifact = await self._describe("adapter", version, adapter)
        await self._keep(artifact, adapter)
        delta = await self._delta_to(artifact)
        await self._ledger.record_publication(version, artifact.envelope)
        await self._ledger.record_event(
            "published",
            version=version,
            size=artifact.layout.total_bytes,
            delta_size=None if delta is None else delta.layout.total_bytes,
        )
        return await self._announce(Published(version, artifact, delta))

    async def resume(self, version: int, envelope: bytes, adapter: Path) -> Published:
        """Announce again what an earlier process of this hub recorded as published."""
        artifact = Artifact.open(envelope, self._identity.public_key)
        await self._keep(artifact, adapter)
        return await self._announce(Published(version, artifact))

    async def publish_base(self, artifact: Artifact, folder: Path) -> None:
        """Offer the base model (see `same_base`)."""
        await self._keep(artifact, folder)
        self._exchange.offer(artifact.id)

    async def _describe(
        self,
        kind: Literal["base", "adapter", "delta"],
        version: int,
        folder: Path,
        delta: DeltaOf | None = None,
    ) -> Artifact:
        return await _describe(
            self._identity,
            self._run_id,
            kind,
            version,
            folder,
            chunk_bytes=self._chunk_bytes,
            delta=delta,
        )

    async def _delta_to(self, target: Artifact) -> Artifact | None:
        """A delta from the newest version to this one, in the store; None if it is of no use."""
        if self.latest is None or self._deltas is None:
            return None
        version, parent = target.manifest.version, self.latest.artifact
        folder = self._delta_folder(version)
        try:
            if not await trio.to_thread.run_sync(self._make_delta, parent, target, folder):
                return None
            joins = DeltaOf(parent=parent.id, target=target.id)
            delta = await self._describe("delta", version, folder, joins)
            await self._keep(delta, folder)
        except ArtifactError as error:
            log.warning("version %d is published without a delta: %s", version, error)
            shutil.rmtree(folder, ignore_errors=True)
            return None
        share = delta.layout.total_bytes / target.layout.total_bytes
        log.info("the delta to version %d has %.2f of the bytes of the snapshot.", version, share)
        return delta

    def _make_delta(self, parent: Artifact, target: Artifact, folder: Path) -> bool:
        with disk_errors(f"write a delta to {target}"):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            if make_delta(self._store, parent, target, folder / DELTA_FILE) is not None:
                return True
            folder.rmdir()
            return False

    def _delta_folder(self, version: int) -> Path:
        assert self._deltas is not None
        return self._deltas / f"v{version:06d}"

    async def _keep(self, artifact: Artifact, folder: Path) -> None:
        """A verified copy in the store."""
        await trio.to_thread.run_sync(self._store.add, artifact, folder)
        self._sources[artifact.id] = (artifact, folder)

    def note_damage(self, artifact_id: bytes) -> None:
        """An artifact turned out corrupt on disk; `repair` puts it right."""
        with suppress(trio.WouldBlock):  # full: the next reader of the chunk will say it again
            self._damaged.send_nowait(artifact_id)

    async def repair(self) -> None:
        """Copy damaged artifacts into the store again from the folders they were made of."""
        async for artifact_id in self._to_repair:
            if artifact_id not in self._sources:
                continue
            artifact, folder = self._sources[artifact_id]
            log.warning("%s was corrupt in the store and is copied again.", artifact)
            try:
                await self._copy_again(artifact, folder)
            except ArtifactError as error:  # the next reader of the chunk will say it again
                log.warning("%s could not be copied again: %s", artifact, error)

    async def _copy_again(self, artifact: Artifact, folder: Path) -> None:
        try:
            await self._keep(artifact, folder)
        except ArtifactError:  # what is left of the old copy is of no use
            await trio.to_thread.run_sync(self._store.remove, artifact.id)
            await self._keep(artifact, folder)
        self._exchange.offer(artifact.id)

    async def _announce(self, published: Published) -> Published:
        if not self._recent:
            await trio.to_thread.run_sync(self._clear_earlier, published)
        for artifact in published.artifacts:
            self._exchange.offer(artifact.id)
        self._recent.append(published)
        for old in self._recent[: -self._recent_kept]:
            self._retire(old)
        self._recent = self._recent[-self._recent_kept :]
        self._changed.set()
        self._changed = trio.Event()
        return published

    def _retire(self, old: Published) -> None:
        for artifact in old.artifacts:
            self._exchange.withdraw(artifact.id)
            self._store.remove(artifact.id)
            del self._sources[artifact.id]
        if old.delta is not None:
            shutil.rmtree(self._delta_folder(old.version), ignore_errors=True)

    def _clear_earlier(self, first: Published) -> None:
        """Delete what an earlier process of this hub served and this one does not."""
        if self._deltas is not None:
            shutil.rmtree(self._deltas, ignore_errors=True)
        for artifact in self._store.complete() + self._store.unfinished():
            manifest = artifact.manifest
            if manifest.kind != "base" and artifact.id != first.artifact.id:
                self._store.remove(artifact.id)


async def describe_base(
    identity: Identity, run_id: str, folder: Path, *, chunk_bytes: int
) -> Artifact:
    """The base model as it is in the folder now."""
    return await _describe(identity, run_id, "base", 0, folder, chunk_bytes=chunk_bytes)


async def same_base(ledger: Ledger, now: Artifact, folder: Path) -> Artifact:
    """The base model under the manifest it had from the start of the run: this one, if it begins.

    ConfigError if its files in the folder are not those any more.
    """
    kept = await ledger.remember("base_envelope", now.envelope.hex())
    artifact = Artifact.open(bytes.fromhex(kept), now.key)
    if artifact.manifest.content != now.manifest.content:
        raise ConfigError(
            f"the base model in {folder} is not the one this run began with.",
            fix="Put the old files back, or begin a new run with: echo-hub init",
        )
    return artifact


async def _describe(
    identity: Identity,
    run_id: str,
    kind: Literal["base", "adapter", "delta"],
    version: int,
    folder: Path,
    *,
    chunk_bytes: int,
    delta: DeltaOf | None = None,
) -> Artifact:
    def work() -> Artifact:
        manifest = build_manifest(
            folder,
            run_id=run_id,
            kind=kind,
            version=version,
            chunk_bytes=chunk_bytes,
            created_at=time.time(),
            delta=delta,
        )
        return Artifact.sign(identity, manifest)

    return await trio.to_thread.run_sync(work)
