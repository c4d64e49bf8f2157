"""Artifacts that are not what they claim: refused by type, and nothing is left where it should not.

What a manifest alone gives away is in test_artifact_manifest.py; here are those that pass, are
begun, and turn out wrong.
"""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import msgspec
import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from echo_p2p.artifact.manifest import Artifact
from echo_p2p.artifact.store import Store
from echo_p2p.envelope import seal
from echo_p2p.errors import ChunkError, EchoError, ManifestError, SignatureError, StoreError
from echo_p2p.identity import Identity
from echo_p2p.wire import FileEntry, Manifest

HUB = Identity.from_seed(bytes(32))
CHUNK = 1024
CAP = 1 << 40  # sparse: what is declared takes no disk until it comes

PARTS = ["a", "B", "..", ".", "", "con", "x.bin", "\\", "/etc", "~", "C:", "a" * 99, " ", "é"]
names = st.text(max_size=12) | st.lists(st.sampled_from(PARTS), max_size=4).map("/".join)
good_names = st.from_regex(r"[a-z]{1,8}(/[a-z]{1,8}){0,3}", fullmatch=True)
sizes = st.integers(0, 4 * CHUNK) | st.integers(0, 2**38)


def artifact_of(data: bytes, named: dict[str, int], **changes: object) -> Artifact:
    """These bytes under these names and sizes, whether they fit or not."""
    pieces = [data[at : at + CHUNK] for at in range(0, len(data), CHUNK)]
    manifest = Manifest(
        run_id="run",
        kind="adapter",
        version=1,
        files=tuple(FileEntry(name=name, size=size) for name, size in named.items()),
        chunk_bytes=CHUNK,
        chunks=b"".join(blake3(piece).digest() for piece in pieces),
        content=blake3(data).digest(),
        created_at=0.0,
        delta=None,
    )
    return Artifact.sign(HUB, msgspec.structs.replace(manifest, **changes))


def tree(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(names | good_names, sizes), min_size=1, max_size=4), st.binary())
def test_whatever_is_signed_stays_in_the_store(entries: list[tuple[str, int]], data: bytes) -> None:
    files = tuple(FileEntry(name=name[:200] or "x", size=size) for name, size in entries)
    count = min(-(-sum(file.size for file in files) // CHUNK), 4000)
    try:
        artifact = artifact_of(b"x", {"x": 1}, files=files, chunks=bytes(32 * count))
    except ManifestError:
        return
    with tempfile.TemporaryDirectory() as root:
        with Store(Path(root) / "store", cap_bytes=CAP) as store:
            with store.begin(artifact) as partial:
                for index in (0, count - 1, count, -1):
                    with pytest.raises(ChunkError):
                        partial.write(index, data)
                assert partial.have == 0
            inside = store.root / "partial" / artifact.id.hex()
            blocks = sum(path.stat().st_blocks for path in tree(inside) if path.is_file())
            assert 512 * blocks < 1 << 20
            assert store.path(artifact.id) is None
        laid_out = {path for path in tree(inside / "files") if path.is_file()}
        assert laid_out == {inside / "files" / file.name for file in files}
        assert {path.name for path in Path(root).iterdir()} == {"store"}
        assert {path.name for path in store.root.iterdir()} == {
            "complete", "partial", "trash", "lock",
        }  # fmt: skip


def test_more_than_the_cap_is_refused_before_anything_is_removed(tmp_path: Path) -> None:
    small = artifact_of(b"small", {"a": 5})
    huge = artifact_of(b"x", {"a": 1}, files=(FileEntry(name="a", size=CHUNK << 16),),
                       chunks=bytes(32 << 16))  # fmt: skip
    source = tmp_path / "source"
    source.mkdir()
    (source / "a").write_bytes(b"small")
    with Store(tmp_path / "store", cap_bytes=1 << 20) as store:
        store.add(small, source)
        with pytest.raises(StoreError, match="no room"):
            store.begin(huge)
        assert store.path(small.id) is not None
        assert list((store.root / "partial").iterdir()) == []


DATA = random.Random(7).randbytes(3 * CHUNK + 100)


@pytest.mark.parametrize(
    ("changes", "last"),
    [
        ({"content": bytes(32)}, ManifestError),  # each chunk is right and the whole is not
        ({"content": blake3(DATA[:-1]).digest()}, ManifestError),
    ],
)
def test_right_chunks_of_a_wrong_whole(
    tmp_path: Path, changes: dict[str, object], last: type[EchoError]
) -> None:
    artifact = artifact_of(DATA, {"a": 2000, "b": len(DATA) - 2000}, **changes)
    with Store(tmp_path / "store", cap_bytes=None) as store:
        with store.begin(artifact) as partial:
            for index in range(4):
                partial.write(index, DATA[index * CHUNK : (index + 1) * CHUNK])
            with pytest.raises(last):
                partial.finish()
        assert store.path(artifact.id) is None
        assert not store.complete()


@pytest.mark.parametrize("more", [1, 100, CHUNK - 101])
def test_sizes_that_lie_within_the_last_chunk_never_add_up(tmp_path: Path, more: int) -> None:
    """As many chunks as digests, so the manifest is consistent; the last chunk cannot come."""
    artifact = artifact_of(DATA, {"a": len(DATA) + more})
    with Store(tmp_path / "store", cap_bytes=None) as store:
        with store.begin(artifact) as partial:
            for index in range(3):
                partial.write(index, DATA[index * CHUNK : (index + 1) * CHUNK])
            for last in (DATA[3 * CHUNK :], DATA[3 * CHUNK :] + bytes(more)):
                with pytest.raises(ChunkError):
                    partial.write(3, last)  # of the right digest, or of the right size
            assert partial.lacks == 1 << 3
        assert store.path(artifact.id) is None


def test_another_key_cannot_replace_what_the_hub_signed(tmp_path: Path) -> None:
    mine = artifact_of(b"small", {"a": 5})
    theirs = seal(Identity.create(), mine.manifest)
    with pytest.raises(SignatureError):
        Artifact.open(theirs, HUB.public_key)
    assert Artifact.open(theirs, None).id == mine.id  # an id says what, and not by whom
