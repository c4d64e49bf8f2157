"""Publishing a version: manifest, signature, store, ledger, and only then the network.

Invariants: what was announced is in the ledger, with the envelope that was announced, so after a
crash the same version is never announced with other bytes; versions only rise.
"""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import trio

from echo_hub.ledger import Ledger
from echo_p2p.artifact.manifest import Artifact, build_manifest
from echo_p2p.artifact.store import Store
from echo_p2p.errors import ArtifactError, ConfigError, RollbackError
from echo_p2p.identity import Identity
from echo_p2p.swarm.exchange import Exchange

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Published:
    """A version that the network knows."""

    version: int
    artifact: Artifact


class Publisher:
    """Turns adapter folders into announced artifacts."""

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
    ) -> None:
        self._identity = identity
        self._run_id = run_id
        self._chunk_bytes = chunk_bytes
        self._store = store
        self._exchange = exchange
        self._ledger = ledger
        self._recent_kept = keep
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
        await self._ledger.record_publication(version, artifact.envelope)
        return self._announce(version, artifact)

    async def resume(self, version: int, envelope: bytes, adapter: Path) -> Published:
        """Announce again what an earlier process of this hub recorded as published."""
        artifact = Artifact.open(envelope, self._identity.public_key)
        await self._keep(artifact, adapter)
        return self._announce(version, artifact)

    async def publish_base(self, folder: Path) -> Artifact:
        """Offer the base model, under the manifest it had from the start of the run."""
        made = await self._describe("base", 0, folder)
        kept = await self._ledger.remember("base_envelope", made.envelope.hex())
        artifact = Artifact.open(bytes.fromhex(kept), self._identity.public_key)
        if artifact.manifest.content != made.manifest.content:
            raise ConfigError(
                f"the base model in {folder} is not the one this run began with.",
                fix="Put the old files back, or begin a new run with: echo-hub init",
            )
        await self._keep(artifact, folder)
        self._exchange.offer(artifact.id)
        return artifact

    async def _describe(
        self, kind: Literal["base", "adapter"], version: int, folder: Path
    ) -> Artifact:
        def work() -> Artifact:
            manifest = build_manifest(
                folder,
                run_id=self._run_id,
                kind=kind,
                version=version,
                chunk_bytes=self._chunk_bytes,
                created_at=time.time(),
            )
            return Artifact.sign(self._identity, manifest)

        return await trio.to_thread.run_sync(work)

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

    def _announce(self, version: int, artifact: Artifact) -> Published:
        published = Published(version, artifact)
        self._exchange.offer(artifact.id)
        self._recent.append(published)
        for old in self._recent[: -self._recent_kept]:
            self._exchange.withdraw(old.artifact.id)
            self._store.remove(old.artifact.id)
            del self._sources[old.artifact.id]
        self._recent = self._recent[-self._recent_kept :]
        self._changed.set()
        self._changed = trio.Event()
        return published
