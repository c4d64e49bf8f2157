"""Deltas in a store: rebuilt bit for bit and whole, or refused with nothing to show for it."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from echo_p2p.artifact import rebuild as rebuild_module
from echo_p2p.artifact.manifest import DELTA_FILE, Artifact, build_manifest
from echo_p2p.artifact.rebuild import is_worth_sending, make_delta, rebuild
from echo_p2p.artifact.store import Store
from echo_p2p.errors import ArtifactError, ChunkError, DeltaError, StoreError
from echo_p2p.identity import Identity
from echo_p2p.wire import DeltaOf

HUB = Identity.from_seed(bytes(32))
CHUNK = 64 * 1024


def describe(folder: Path, kind: str, version: int, delta: DeltaOf | None = None) -> Artifact:
    manifest = build_manifest(
        folder, run_id="run", kind=kind, version=version, chunk_bytes=CHUNK, created_at=0.0,
        delta=delta,
    )  # type: ignore[arg-type]  # fmt: skip
    return Artifact.sign(HUB, manifest)


def write_version(folder: Path, version: int, count: int = 100_000) -> Path:
    """Two shards and a config; each version is a small step from the one before."""
    folder.mkdir(parents=True)
    steps = np.random.default_rng(1).normal(0, 0.05, count).astype("<f4")
    for seed in range(version):
        steps += np.random.default_rng(100 + seed).normal(0, 1e-4, count).astype("<f4")
    for shard in range(2):
        save_file({"w": steps[shard::2], "b": steps[:7]}, folder / f"part-{shard}.safetensors")
    (folder / "config.json").write_text(f'{{"version": {version}}}')
    return folder


@dataclass
class World:
    """The hub's store with versions 1 and 2, a delta between them, and a node's with version 1."""

    root: Path
    hub: Store
    node: Store
    parent: Artifact
    target: Artifact
    delta: Artifact

    def sources(self, version: int) -> Path:
        return self.root / f"v{version}"

    def put_delta(self, data: bytes, parent: bytes | None = None) -> Artifact:
        """What these bytes are as a delta to version 2, in the node's store."""
        folder = self.root / f"delta-{len(list(self.root.iterdir()))}"
        folder.mkdir()
        (folder / DELTA_FILE).write_bytes(data)
        joins = DeltaOf(parent=parent or self.parent.id, target=self.target.id)
        delta = describe(folder, "delta", 2, joins)
        self.node.add(delta, folder)
        return delta

    def delta_bytes(self) -> bytes:
        path = self.node.path(self.delta.id)
        assert path is not None
        return (path / DELTA_FILE).read_bytes()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with (
        Store(tmp_path / "hub", cap_bytes=None) as hub,
        Store(tmp_path / "node", cap_bytes=None) as node,
    ):
        artifacts = []
        for version in (1, 2):
            source = write_version(tmp_path / f"v{version}", version)
            artifacts.append(describe(source, "adapter", version))
            hub.add(artifacts[-1], source)
        parent, target = artifacts
        node.add(parent, tmp_path / "v1")
        out = tmp_path / "delta"
        out.mkdir()
        assert make_delta(hub, parent, target, out / DELTA_FILE) is not None
        delta = describe(out, "delta", 2, DeltaOf(parent=parent.id, target=target.id))
        node.add(delta, out)
        yield World(tmp_path, hub, node, parent, target, delta)


def contents(folder: Path | None) -> dict[str, bytes]:
    assert folder is not None
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_snapshot_appears_whole_bit_for_bit(world: World) -> None:
    done = []
    for so_far in rebuild(world.node, world.delta, world.target):
        assert world.node.path(world.target.id) is None
        done.append(so_far)
    assert done[-1] == world.target.layout.total_bytes
    assert len(done) == world.target.layout.count
    assert contents(world.node.path(world.target.id)) == contents(world.sources(2))
    assert world.delta.layout.total_bytes < 0.8 * world.target.layout.total_bytes


def test_stopped_in_the_middle_it_goes_on_later(world: World) -> None:
    work = rebuild(world.node, world.delta, world.target)
    next(work)
    work.close()
    assert world.node.path(world.target.id) is None
    assert [artifact.id for artifact in world.node.unfinished()] == [world.target.id]
    list(rebuild(world.node, world.delta, world.target))
    assert contents(world.node.path(world.target.id)) == contents(world.sources(2))


def refused(world: World, delta: Artifact, kind: type[ArtifactError] = DeltaError) -> None:
    """It fails, shows nothing, and the snapshot can be fetched in its place."""
    with pytest.raises(kind):
        list(rebuild(world.node, delta, world.target))
    assert world.node.path(world.target.id) is None
    world.node.add(world.target, world.sources(2))
    assert contents(world.node.path(world.target.id)) == contents(world.sources(2))


def test_another_parent_is_refused(world: World) -> None:
    other = write_version(world.root / "v1-other", 1)
    (other / "part-0.safetensors").write_bytes(
        (world.sources(2) / "part-0.safetensors").read_bytes()
    )
    artifact = describe(other, "adapter", 1)
    world.node.add(artifact, other)
    refused(world, world.put_delta(world.delta_bytes(), artifact.id))


def test_a_smaller_parent_is_refused(world: World) -> None:
    artifact = describe(write_version(world.root / "small", 1, count=1000), "adapter", 1)
    world.node.add(artifact, world.root / "small")
    refused(world, world.put_delta(world.delta_bytes(), artifact.id))


def test_no_parent_is_refused(world: World) -> None:
    world.node.remove(world.parent.id)
    refused(world, world.delta)


@pytest.mark.parametrize("seed", range(5))
def test_damage_that_was_signed_is_refused(world: World, seed: int) -> None:
    data = bytearray(world.delta_bytes())
    data[random.Random(seed).randrange(len(data))] ^= 0x40
    refused(world, world.put_delta(bytes(data)))


def test_a_parent_that_rotted_is_found_out(world: World) -> None:
    path = world.node.path(world.parent.id)
    assert path is not None
    with (path / "part-1.safetensors").open("r+b") as file:
        file.seek(5000)
        file.write(b"rot")
    refused(world, world.delta, ChunkError)
    assert world.node.path(world.parent.id) is None  # to be fetched again, or forgotten


def test_what_is_complete_or_being_fetched_is_left_alone(world: World) -> None:
    with world.node.begin(world.target), pytest.raises(StoreError, match="being fetched"):
        next(rebuild(world.node, world.delta, world.target))
    world.node.add(world.target, world.sources(2))
    with pytest.raises(StoreError, match="complete already"):
        next(rebuild(world.node, world.delta, world.target))


def test_a_full_store_is_said_and_keeps_the_parent(world: World) -> None:
    world.node.cap_bytes = world.parent.layout.total_bytes + world.delta.layout.total_bytes
    with pytest.raises(StoreError, match="no room"):
        next(rebuild(world.node, world.delta, world.target))
    assert world.node.verify(world.parent.id)


def test_a_delta_that_is_not_worth_it_is_not_written(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rebuild_module, "MOST_OF_SNAPSHOT", 0.3)
    out = world.root / "unwanted"
    assert make_delta(world.hub, world.parent, world.target, out) is None
    assert not out.exists()


def test_what_is_worth_sending() -> None:
    assert is_worth_sending(899, 1000)
    assert not is_worth_sending(900, 1000)
    assert not is_worth_sending(0, 0)


def test_memory_does_not_grow_with_the_artifact(tmp_path: Path) -> None:
    """24 MB there and back within a few chunks and blocks."""
    rng = np.random.default_rng(1)
    before = rng.integers(0, 2**16, 12_000_000, dtype=np.uint16)
    after = before + (rng.random(12_000_000) < 0.01).astype(np.uint16)
    artifacts = []
    with Store(tmp_path / "store", cap_bytes=None) as store:
        for version, values in enumerate((before, after)):
            source = tmp_path / f"v{version}"
            source.mkdir()
            save_file({"w": values}, source / "model.safetensors")
            artifacts.append(describe(source, "adapter", version))
            if not version:
                store.add(artifacts[0], source)
        del before, after, values
        parent, target = artifacts
        store.add(target, source)
        out = tmp_path / "delta"
        out.mkdir()
        tracemalloc.start()
        size = make_delta(store, parent, target, out / DELTA_FILE)
        _, encoding = tracemalloc.get_traced_memory()
        assert size is not None
        delta = describe(out, "delta", 1, DeltaOf(parent=parent.id, target=target.id))
        store.add(delta, out)
        store.remove(target.id)
        tracemalloc.reset_peak()
        list(rebuild(store, delta, target))
        _, decoding = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert size < 0.15 * 24e6
    assert max(encoding, decoding) < 12e6
