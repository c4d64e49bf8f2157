"""The store: kills at any byte, corruption on disk, eviction, full disks, two processes."""

from __future__ import annotations

import os
import random
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from echo_p2p.artifact import bitmap
from echo_p2p.artifact.manifest import Artifact, build_manifest
from echo_p2p.artifact.store import Store
from echo_p2p.errors import ArtifactError, ChunkError, ManifestError, StoreError
from echo_p2p.identity import Identity

HUB = Identity.from_seed(bytes(32))
CHUNK = 1024
FILES = {"a.bin": 20_000, "sub/b.bin": 7_001, "empty": 0}


def make(folder: Path, version: int = 0, files: dict[str, int] | None = None) -> Artifact:
    """An artifact of random bytes, its files in `folder`."""
    rng = random.Random(version)
    for name, size in (files or FILES).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(rng.randbytes(size))
    manifest = build_manifest(
        folder,
        run_id="run",
        kind="adapter",
        version=version,
        chunk_bytes=CHUNK,
        created_at=0.0,
    )
    return Artifact.sign(HUB, manifest)


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def chunks_of(folder: Path, artifact: Artifact) -> list[bytes]:
    whole = b"".join((folder / file.name).read_bytes() for file in artifact.manifest.files)
    return [whole[i : i + CHUNK] for i in range(0, len(whole), CHUNK)]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return tmp_path / "source"


@pytest.fixture
def artifact(source: Path) -> Artifact:
    return make(source)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "store", cap_bytes=None) as store:
        yield store


def test_chunks_in_any_order_become_the_folder(
    store: Store, artifact: Artifact, source: Path
) -> None:
    chunks = chunks_of(source, artifact)
    order = random.Random(0).sample(range(len(chunks)), len(chunks))
    with store.begin(artifact) as partial:
        for index in order:
            assert store.path(artifact.id) is None
            with pytest.raises(ArtifactError):
                partial.finish()
            partial.write(index, chunks[index])
            assert store.read_chunk(artifact.id, index) == chunks[index]
        assert not partial.lacks
        path = partial.finish()
    assert store.path(artifact.id) == path
    assert contents(path) == contents(source)
    assert store.have(artifact.id) == bitmap.full(len(chunks))
    assert [known.id for known in store.complete()] == [artifact.id]
    assert stat.S_IMODE((path / "sub/b.bin").stat().st_mode) == 0o644
    assert stat.S_IMODE((path / "sub").stat().st_mode) == 0o755


def test_add_copies_and_checks(store: Store, artifact: Artifact, source: Path) -> None:
    (source / "a.bin").write_bytes(bytes(20_000))
    with pytest.raises(ManifestError, match="does not hold the bytes"):
        store.add(artifact, source)
    assert store.path(artifact.id) is None
    make(source)
    path = store.add(artifact, source)
    assert contents(path) == contents(source)
    assert store.add(artifact, source) == path


def test_false_chunks_are_refused(store: Store, artifact: Artifact, source: Path) -> None:
    chunks = chunks_of(source, artifact)
    with store.begin(artifact) as partial:
        for index, data in [(0, chunks[1]), (0, chunks[0][:-1]), (0, b""), (10**6, chunks[0])]:
            with pytest.raises(ChunkError):
                partial.write(index, data)
        assert partial.have == 0
    assert store.read_chunk(artifact.id, 0) is None
    assert store.read_chunk(artifact.id, -1) is None
    assert store.read_chunk(bytes(32), 0) is None


def test_a_manifest_whose_content_digest_lies(store: Store, source: Path) -> None:
    import msgspec

    manifest = make(source).manifest
    lying = Artifact.sign(HUB, msgspec.structs.replace(manifest, content=bytes(32)))
    with pytest.raises(ManifestError, match="adds up"):
        store.add(lying, source)
    assert store.path(lying.id) is None


def test_what_was_complete_is_known_after_a_restart(
    tmp_path: Path, artifact: Artifact, source: Path
) -> None:
    with Store(tmp_path / "store", cap_bytes=None) as store:
        store.add(artifact, source)
    with Store(tmp_path / "store", cap_bytes=None) as store:
        known = store.get(artifact.id)
        assert known is not None
        assert (known.envelope, known.manifest) == (artifact.envelope, artifact.manifest)
        path = store.path(artifact.id)
        assert path is not None
        assert contents(path) == contents(source)


def test_a_partial_download_resumes_by_digest(
    tmp_path: Path, artifact: Artifact, source: Path
) -> None:
    chunks = chunks_of(source, artifact)
    with Store(tmp_path / "store", cap_bytes=None) as store, store.begin(artifact) as partial:
        for index in (1, 5, 20):
            partial.write(index, chunks[index])
    (half,) = (tmp_path / "store/partial").iterdir()
    with (half / "files/a.bin").open("r+b") as file:
        file.seek(5 * CHUNK)
        file.write(b"rot")
    with Store(tmp_path / "store", cap_bytes=None) as store:
        assert store.have(artifact.id) is None
        with store.begin(artifact) as partial:
            assert list(bitmap.indices(partial.have)) == [1, 20]


def _flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))


@pytest.mark.parametrize("how", ["served", "verified", "truncated", "deleted"])
def test_corruption_on_disk_is_found_and_repaired(
    tmp_path: Path, artifact: Artifact, source: Path, how: str
) -> None:
    chunks = chunks_of(source, artifact)
    with Store(tmp_path / "store", cap_bytes=None) as store:
        path = store.add(artifact, source)
        if how == "served":
            _flip(path / "a.bin", 3 * CHUNK + 17)
            assert store.read_chunk(artifact.id, 2) == chunks[2]
            with pytest.raises(ChunkError):
                store.read_chunk(artifact.id, 3)
            assert store.read_chunk(artifact.id, 3) is None
        elif how == "verified":
            assert store.verify(artifact.id)
            _flip(path / "sub/b.bin", 0)
            assert not store.verify(artifact.id)
        elif how == "truncated":
            os.truncate(path / "a.bin", 100)
        else:
            shutil.rmtree(path / "sub")
    with Store(tmp_path / "store", cap_bytes=None) as store:
        assert store.path(artifact.id) is None
        with store.begin(artifact) as partial:
            assert 0 < partial.lacks.bit_count() < len(chunks)
            for index in bitmap.indices(partial.lacks):
                partial.write(index, chunks[index])
            assert contents(partial.finish()) == contents(source)


def test_one_rotten_chunk_seldom_comes_alone(
    store: Store, artifact: Artifact, source: Path
) -> None:
    folder = store.add(artifact, source)
    largest = max(folder.rglob("*"), key=lambda path: path.stat().st_size)
    with largest.open("r+b") as file:
        file.write(bytes(largest.stat().st_size))  # every chunk of it is bad, one of them is read
    with pytest.raises(ChunkError):
        for index in range(artifact.layout.count):
            store.read_chunk(artifact.id, index)
    assert contents(store.add(artifact, source)) == contents(source)


def test_corruption_before_the_end_of_a_fetch_is_found(
    store: Store, artifact: Artifact, source: Path, tmp_path: Path
) -> None:
    chunks = chunks_of(source, artifact)
    with store.begin(artifact) as partial:
        for index, data in enumerate(chunks):
            partial.write(index, data)
        (half,) = (tmp_path / "store/partial").iterdir()
        _flip(half / "files/a.bin", 4 * CHUNK)
        with pytest.raises(ChunkError):
            partial.finish()
        assert list(bitmap.indices(partial.lacks)) == [4]
        partial.write(4, chunks[4])
        assert contents(partial.finish()) == contents(source)


def test_one_process_at_a_time(tmp_path: Path, store: Store) -> None:
    with pytest.raises(StoreError, match=f"process {os.getpid()}"):
        Store(tmp_path / "store", cap_bytes=None)


def test_one_fetch_of_an_artifact_at_a_time(store: Store, artifact: Artifact, source: Path) -> None:
    with store.begin(artifact), pytest.raises(StoreError, match="being fetched already"):
        store.begin(artifact)
    store.add(artifact, source)
    with pytest.raises(StoreError, match="complete already"):
        store.begin(artifact)


def _versions(tmp_path: Path, count: int) -> list[tuple[Artifact, Path]]:
    folders = [tmp_path / f"v{version}" for version in range(count)]
    return [(make(folder, v, {"x": 10_000}), folder) for v, folder in enumerate(folders)]


def _kept(store: Store) -> list[int]:
    return sorted(known.manifest.version for known in store.complete())


def test_the_least_recently_used_makes_room(tmp_path: Path) -> None:
    versions = _versions(tmp_path, 5)
    with Store(tmp_path / "store", cap_bytes=30_000) as store:
        for artifact, folder in versions[:3]:
            store.add(artifact, folder)
        assert store.path(versions[0][0].id)
        store.add(*versions[3])
        assert _kept(store) == [0, 2, 3]
        with store.pin(versions[2][0].id):
            store.add(*versions[1])
            store.add(*versions[4])
            assert _kept(store) == [1, 2, 4]
    with Store(tmp_path / "store", cap_bytes=30_000) as store:
        assert _kept(store) == [1, 2, 4]
        store.add(*versions[0])
        assert 2 not in _kept(store), "the order of use outlives the process"
    assert not any((tmp_path / "store/trash").iterdir())


def test_another_cap_holds_at_once_but_for_what_is_in_use(tmp_path: Path) -> None:
    versions = _versions(tmp_path, 3)
    with Store(tmp_path / "store", cap_bytes=None) as store:
        for artifact, source in versions:
            store.add(artifact, source)
        whole = store.held_bytes
        with store.pin(versions[0][0].id):
            store.set_cap(2 * whole // 3)
            assert _kept(store) == [0, 2]
            store.set_cap(1)
            assert _kept(store) == [0]
        store.set_cap(1)
        assert (_kept(store), store.held_bytes) == ([], 0)
        assert not [*(tmp_path / "store" / "complete").iterdir()]


def test_what_is_in_use_stays_and_the_refusal_says_sizes(tmp_path: Path) -> None:
    versions = _versions(tmp_path, 3)
    with Store(tmp_path / "store", cap_bytes=25_000) as store:
        store.add(*versions[0])
        store.add(*versions[1])
        with (
            store.pin(versions[0][0].id) as path,
            store.pin(versions[1][0].id),
            pytest.raises(StoreError, match=r"10000 bytes.* may hold 25000, and 20000 .*in use"),
        ):
            store.begin(versions[2][0])
        assert contents(path) == contents(versions[0][1])
        store.add(*versions[2])
        with (
            store.pin(versions[2][0].id),
            store.begin(versions[0][0]),
            pytest.raises(StoreError),
        ):
            store.begin(versions[1][0])
        with pytest.raises(StoreError, match="not complete"), store.pin(bytes(32)):
            pass


def test_removal_waits_for_the_last_user(store: Store, artifact: Artifact, source: Path) -> None:
    path = store.add(artifact, source)
    with store.pin(artifact.id):
        store.remove(artifact.id)
        assert store.path(artifact.id) is None
        assert contents(path) == contents(source)
    assert not path.exists()
    store.remove(artifact.id)
    with store.begin(artifact) as partial:
        store.remove(artifact.id)
        for index, data in enumerate(chunks_of(source, artifact)):
            partial.write(index, data)
        with pytest.raises(StoreError, match="removed"):
            partial.finish()
    assert not any((store.root / "partial").iterdir())
    assert contents(store.add(artifact, source)) == contents(source)


def _forked(work: Callable[[int], None]) -> tuple[int, int]:
    """Run `work` in a child; it gets the write end of a pipe, we get its pid and the read end."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(reading)
            work(writing)
            code = 0
        finally:
            os._exit(code)
    os.close(writing)
    return pid, reading


def test_killed_at_any_point_it_resumes_and_shows_nothing_half_written(
    tmp_path: Path, artifact: Artifact, source: Path
) -> None:
    rng = random.Random(7)
    chunks = chunks_of(source, artifact)
    root = tmp_path / "store"

    def work(pipe: int) -> None:
        with Store(root, cap_bytes=None) as store:
            os.write(pipe, b"o")
            if store.path(artifact.id) is None:
                with store.begin(artifact) as partial:
                    for index in bitmap.indices(partial.lacks):
                        partial.write(index, chunks[index])
                        os.write(pipe, b"c")
                    partial.finish()
            os.write(pipe, b"f")
            store.remove(artifact.id)
            os.write(pipe, b"r")

    seen = set()
    for _ in range(60):
        pid, pipe = _forked(work)
        for _ in range(rng.randrange(len(chunks) + 3)):
            if not os.read(pipe, 1):
                break
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(pipe)
        with Store(root, cap_bytes=None) as store:
            path = store.path(artifact.id)
            if path is None:
                with store.begin(artifact) as partial:
                    seen.add(partial.have.bit_count())
                    for index in bitmap.indices(partial.have):
                        assert store.read_chunk(artifact.id, index) == chunks[index]
            else:
                seen.add(-1)
                assert contents(path) == contents(source)
    assert len(seen) > 3, "the kills did not fall at different points"


FULL_DISK = """
import pathlib, subprocess, sys
from echo_p2p.artifact.manifest import Artifact
from echo_p2p.artifact.store import Store
from echo_p2p.errors import StoreError
mount, source, envelope = map(pathlib.Path, sys.argv[1:])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", mount], check=True)
artifact = Artifact.open(envelope.read_bytes(), None)
with Store(mount / "store", cap_bytes=None) as store:
    try:
        store.add(artifact, source)
    except StoreError as error:
        print(error)
    print(store.path(artifact.id), store.complete(), list((mount / "store/complete").iterdir()))
"""


def test_a_full_disk_is_a_store_error(tmp_path: Path) -> None:
    own_mounts = ["unshare", "--user", "--map-root-user", "--mount"]
    if not shutil.which("unshare") or subprocess.run([*own_mounts, "true"], check=False).returncode:
        pytest.skip("no user namespaces here: cannot mount a small file system")
    artifact = make(tmp_path / "source", 0, {"big": 1_000_000})
    (tmp_path / "envelope").write_bytes(artifact.envelope)
    (tmp_path / "mount").mkdir()
    arguments = [tmp_path / "mount", tmp_path / "source", tmp_path / "envelope"]
    done = subprocess.run(
        [*own_mounts, sys.executable, "-c", FULL_DISK, *arguments],
        check=True,
        capture_output=True,
        text=True,
    )
    first, second = done.stdout.splitlines()
    assert first.startswith("cannot write chunk")
    assert "No space left on device. Free some disk space." in first
    assert second == "None [] []"


def test_what_is_not_ours_is_left_alone(tmp_path: Path, artifact: Artifact, source: Path) -> None:
    with Store(tmp_path / "store", cap_bytes=None) as store:
        store.add(artifact, source)
    stranger = tmp_path / "store/complete/notes.txt"
    stranger.write_text("mine")
    broken = tmp_path / "store/complete" / ("0" * 64)
    broken.mkdir()
    with Store(tmp_path / "store", cap_bytes=None) as store:
        assert len(store.complete()) == 1
    assert stranger.read_text() == "mine"
    assert not broken.exists()
