"""Publishing: what is announced is whole, recorded first, the same after a restart; and deltas."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from net_support import ANY_PORT, in_trio
from safetensors.numpy import save_file

from echo_hub.ledger.ledger import Ledger
from echo_hub.publish.publisher import Published, Publisher
from echo_p2p.artifact import rebuild as rebuild_module
from echo_p2p.artifact.manifest import check_leads_to
from echo_p2p.artifact.rebuild import rebuild
from echo_p2p.artifact.store import Store
from echo_p2p.errors import RollbackError
from echo_p2p.identity import Identity
from echo_p2p.net.host import Peer, open_peer
from echo_p2p.net.rpc import ask
from echo_p2p.swarm.exchange import Exchange, HubSide
from echo_p2p.wire import SWARM_PROTOCOL, HaveReply, HaveRequest

KEEP = 2


@dataclass
class Desk:
    """A hub's publisher with all that it writes to. `version` is the last that was committed."""

    root: Path
    publisher: Publisher
    store: Store
    node: Peer
    hub_id: str
    ledger: Ledger
    version: int

    async def publish(self) -> Published:
        """The next version."""
        self.version += 1
        if self.version:
            await self.ledger.commit_update(self.version, [], {})
        return await self.publisher.publish(self.version, self.adapter(self.version))

    def adapter(self, version: int) -> Path:
        """Its folder: a small step from the one before."""
        folder = self.root / f"v{version}"
        if not folder.exists():
            folder.mkdir()
            weights = np.random.default_rng(1).normal(0, 0.05, 20_000)
            for number in range(version):
                weights += np.random.default_rng(100 + number).normal(0, 1e-4, 20_000)
            save_file({"w": weights.astype("<f4")}, folder / "adapter_model.safetensors")
            (folder / "adapter_config.json").write_text("{}")
        return folder

    async def served(self, published: Published) -> list[bool]:
        """Of the snapshot and its delta, what a node is told that it can have."""
        told = []
        for artifact in published.artifacts:
            request = HaveRequest(artifact=artifact.id, known=b"", wait_s=0.0)
            reply = await ask(
                self.node, self.hub_id, SWARM_PROTOCOL, request, HaveReply, deadline_s=30
            )
            told.append(bool(reply.have))
        return told

    def in_store(self) -> list[tuple[str, int]]:
        artifacts = self.store.complete() + self.store.unfinished()
        return sorted((a.manifest.kind, a.manifest.version) for a in artifacts)

    def delta_folders(self) -> list[str]:
        folder = self.root / "deltas"
        return sorted(each.name for each in folder.iterdir()) if folder.exists() else []


@asynccontextmanager
async def open_desk(
    root: Path, identity: Identity, *, version: int = -1, deltas: bool = True
) -> AsyncIterator[Desk]:
    async with Ledger.open(root / "ledger.sqlite", "run") as ledger:
        if version < 0:
            await ledger.begin()
        async with (
            open_peer(identity, [ANY_PORT]) as peer,
            open_peer(Identity.create(), []) as node,
        ):
            await node.connect(peer.addresses, deadline_s=30)
            with Store(root / "store", cap_bytes=None) as store:
                exchange = Exchange(peer, store, hub=HubSide())
                publisher = Publisher(
                    identity, "run", 16384, store=store, exchange=exchange, ledger=ledger,
                    keep=KEEP, deltas=root / "deltas" if deltas else None,
                )  # fmt: skip
                yield Desk(root, publisher, store, node, peer.peer_id, ledger, version)


@in_trio
async def test_each_version_but_the_first_has_a_delta_that_gives_it(tmp_path: Path) -> None:
    async with open_desk(tmp_path, Identity.create()) as desk:
        before = await desk.publish()
        assert before.delta is None
        for _ in range(3):
            now = await desk.publish()
            assert now.delta is not None
            check_leads_to(now.delta, now.artifact)
            assert now.delta.manifest.delta is not None
            assert now.delta.manifest.delta.parent == before.artifact.id
            assert await desk.served(now) == [True, True]
            desk.store.remove(now.artifact.id)
            list(rebuild(desk.store, now.delta, now.artifact))
            before = now


@in_trio
async def test_what_is_served_no_more_is_deleted(tmp_path: Path) -> None:
    async with open_desk(tmp_path, Identity.create()) as desk:
        versions = [await desk.publish() for _ in range(4)]
        served = [await desk.served(version) for version in versions]
        assert served == [[False], [False, False], [True, True], [True, True]]
        assert desk.in_store() == [("adapter", 2), ("adapter", 3), ("delta", 2), ("delta", 3)]
        assert desk.delta_folders() == ["v000002", "v000003"]


@in_trio
async def test_a_delta_that_is_no_smaller_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_desk(tmp_path, Identity.create()) as desk:
        await desk.publish()
        noise = np.random.default_rng(2).integers(0, 2**32, 20_000, dtype=np.uint32)
        save_file({"w": noise}, desk.adapter(1) / "adapter_model.safetensors")
        assert (await desk.publish()).delta is None
        monkeypatch.setattr(rebuild_module, "MOST_OF_SNAPSHOT", 0.1)
        assert (await desk.publish()).delta is None
        assert desk.delta_folders() == []


@in_trio
async def test_no_deltas_are_made_where_none_are_wanted(tmp_path: Path) -> None:
    async with open_desk(tmp_path, Identity.create(), deltas=False) as desk:
        assert [(await desk.publish()).delta for _ in range(2)] == [None, None]


@in_trio
async def test_a_version_whose_delta_cannot_be_made_is_published_without(tmp_path: Path) -> None:
    async with open_desk(tmp_path, Identity.create()) as desk:
        first = await desk.publish()
        path = desk.store.path(first.artifact.id)
        assert path is not None
        (path / "adapter_config.json").write_text("[]")  # so that it cannot be compared with
        second = await desk.publish()
        assert second.delta is None
        assert await desk.served(second) == [True]
        (tmp_path / "deltas").rmdir()
        (tmp_path / "deltas").write_text("in the way")
        assert (await desk.publish()).delta is None


@in_trio
async def test_after_a_restart_the_same_envelope_is_announced_and_no_delta(tmp_path: Path) -> None:
    identity = Identity.create()
    async with open_desk(tmp_path, identity) as desk:
        for _ in range(3):
            last = await desk.publish()
        assert last.delta is not None
    async with open_desk(tmp_path, identity, version=2) as desk:
        resumed = await desk.publisher.resume(2, last.artifact.envelope, desk.adapter(2))
        assert resumed.artifact.envelope == last.artifact.envelope
        assert resumed.delta_envelope is None
        assert desk.in_store() == [("adapter", 2)]
        assert desk.delta_folders() == []
        following = await desk.publish()
        assert following.delta is not None
        assert following.delta.manifest.delta is not None
        assert following.delta.manifest.delta.parent == last.artifact.id


@in_trio
async def test_a_delta_that_rots_is_copied_again(tmp_path: Path) -> None:
    async with open_desk(tmp_path, Identity.create()) as desk:
        await desk.publish()
        delta = (await desk.publish()).delta
        assert delta is not None
        path = desk.store.path(delta.id)
        assert path is not None
        (path / "delta").write_bytes(bytes((path / "delta").stat().st_size))
        assert not desk.store.verify(delta.id)
        await desk.publisher._copy_again(*desk.publisher._sources[delta.id])
        assert desk.store.verify(delta.id)


@in_trio
async def test_versions_only_rise(tmp_path: Path) -> None:
    async with open_desk(tmp_path, Identity.create()) as desk:
        await desk.publish()
        with pytest.raises(RollbackError):
            await desk.publisher.publish(0, desk.adapter(0))
