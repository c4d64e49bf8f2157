"""Manifests: what is built is accepted, what lies is refused with a ManifestError."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from echo_p2p.artifact import bitmap
from echo_p2p.artifact.disk import read_slices
from echo_p2p.artifact.manifest import (
    Artifact,
    Layout,
    artifact_id,
    build_manifest,
    check_leads_to,
    check_manifest,
)
from echo_p2p.envelope import seal
from echo_p2p.errors import EchoError, ManifestError, SignatureError, WireError
from echo_p2p.identity import Identity
from echo_p2p.wire import DeltaOf, FileEntry, Manifest

HUB = Identity.from_seed(bytes(32))


def manifest_of(sizes: dict[str, int], **changes: object) -> Manifest:
    total = sum(sizes.values())
    manifest = Manifest(
        run_id="run",
        kind="adapter",
        version=1,
        files=tuple(FileEntry(name=name, size=size) for name, size in sizes.items()),
        chunk_bytes=1024,
        chunks=bytes(32) * -(-total // 1024),
        content=bytes(32),
        created_at=0.0,
        delta=None,
    )
    return msgspec.structs.replace(manifest, **changes)


def build(root: Path, chunk_bytes: int = 1024) -> Manifest:
    return build_manifest(
        root, run_id="run", kind="adapter", version=3, chunk_bytes=chunk_bytes, created_at=5.0
    )


def write(root: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def test_what_is_built_describes_the_files(tmp_path: Path) -> None:
    data = random.Random(1).randbytes(5000)
    files = {"b.bin": data[:3000], "a/x.json": data[3000:], "empty": b""}
    manifest = build(write(tmp_path, files))
    assert [(f.name, f.size) for f in manifest.files] == [
        ("a/x.json", 2000),
        ("b.bin", 3000),
        ("empty", 0),
    ]
    whole = data[3000:] + data[:3000]
    assert manifest.content == blake3(whole).digest()
    pieces = [whole[i : i + 1024] for i in range(0, 5000, 1024)]
    assert manifest.chunks == b"".join(blake3(piece).digest() for piece in pieces)
    artifact = Artifact.sign(HUB, manifest)
    assert artifact.id == artifact_id(artifact.payload)
    assert all(artifact.holds(i, piece) for i, piece in enumerate(pieces))
    assert not artifact.holds(0, pieces[1])
    assert not artifact.holds(5, b"")
    assert not artifact.holds(-1, pieces[-1])


def test_only_the_hub_can_sign(tmp_path: Path) -> None:
    envelope = seal(Identity.create(), build(write(tmp_path, {"a": b"x"})))
    with pytest.raises(SignatureError):
        Artifact.open(envelope, HUB.public_key)


def test_a_signed_manifest_is_checked_all_the_same() -> None:
    with pytest.raises(ManifestError):
        Artifact.open(seal(HUB, manifest_of({"../x": 10})), HUB.public_key)


@pytest.mark.parametrize(
    "name",
    [
        *("/a", "a/", "a//b", "./a", "a/./b", "..", "a/../b", "a\\b", "C:x", "a\x00b", "a\nb"),
        *("con", "NUL.txt", "a/com1.bin", "a.", "a ", " a", "b/a. ", "é", "ａ", "a\u202eb"),
        *("a<b", 'a"b', "a|b", "a?b", "a*b", "~\x7f", "x" * 201),
    ],
)
def test_unsafe_names_are_refused(name: str) -> None:
    with pytest.raises(ManifestError):
        check_manifest(manifest_of({"ok": 1, name: 1}))


@pytest.mark.parametrize(
    "name", ["model-00001-of-00002.safetensors", ".gitattributes", "a/b/c.json", "con+1", "my file"]
)
def test_usual_names_are_accepted(name: str) -> None:
    check_manifest(manifest_of({name: 1}))


@pytest.mark.parametrize(
    "names", [["a", "a"], ["a", "A"], ["a", "a/b"], ["x/Y/z", "X/y"], ["d/a", "D/A"]]
)
def test_names_that_collide_are_refused(names: list[str]) -> None:
    entries = tuple(FileEntry(name=name, size=1) for name in names)
    with pytest.raises(ManifestError):
        check_manifest(manifest_of({"z": len(names)}, files=entries))


@pytest.mark.parametrize(
    "changes",
    [
        {"chunks": b""},
        {"chunks": bytes(32 * 9)},
        {"chunks": bytes(32 * 11)},
        {"chunks": bytes(32 * 10 - 1)},
        {"chunk_bytes": 4096},
        {"files": (FileEntry(name="a", size=2**43),)},
        {"files": (FileEntry(name="a", size=0),), "chunks": b""},
    ],
)
def test_sizes_that_lie_are_refused(changes: dict[str, object]) -> None:
    check_manifest(manifest_of({"a": 10 * 1024}))
    with pytest.raises(ManifestError):
        check_manifest(manifest_of({"a": 10 * 1024}, **changes))


def test_a_folder_that_cannot_be_published_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="0 files"):
        build(tmp_path)
    (tmp_path / "empty").touch()
    with pytest.raises(ManifestError, match="without a single byte"):
        build(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    with pytest.raises(ManifestError, match="neither"):
        build(tmp_path)


def test_linked_files_are_followed_and_linked_folders_refused(tmp_path: Path) -> None:
    root = write(tmp_path / "root", {"a": b"1"})
    target = write(tmp_path / "blobs", {"b": b"22"})
    (root / "b").symlink_to(target / "b")
    assert [f.size for f in build(root).files] == [1, 2]
    (root / "c").symlink_to(target)
    with pytest.raises(ManifestError, match="neither"):
        build(root)


@settings(max_examples=300, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 5000), min_size=1, max_size=8).filter(any),
    chunk_bytes=st.integers(1024, 4096),
)
def test_slices_cover_every_byte_once_in_order(sizes: list[int], chunk_bytes: int) -> None:
    files = [FileEntry(name=f"f{i}", size=size) for i, size in enumerate(sizes)]
    layout = Layout(files, chunk_bytes)
    covered: dict[str, int] = {}
    for index in range(layout.count):
        pieces = list(layout.slices(index))
        assert sum(piece.length for piece in pieces) == layout.size(index)
        for piece in pieces:
            assert piece.length > 0
            assert covered.get(piece.name, 0) == piece.offset
            covered[piece.name] = piece.offset + piece.length
    assert covered == {file.name: file.size for file in files if file.size}
    assert layout.total_bytes == sum(sizes)


def test_reading_past_the_end_of_a_file_is_short(tmp_path: Path) -> None:
    write(tmp_path, {"a": b"xyz"})
    layout = Layout([FileEntry(name="a", size=10)], 1024)
    assert read_slices(tmp_path, layout.slices(0)) == b"xyz"


names = st.one_of(
    st.text(max_size=12),
    st.lists(st.sampled_from(["a", "A", "..", ".", "", "con", "b.bin", "\\"]), max_size=4).map(
        "/".join
    ),
)


@settings(max_examples=600, deadline=None)
@given(
    entries=st.lists(
        st.tuples(names, st.integers(0, 2**44 - 1) | st.integers(0, 3000)), max_size=5
    ),
    chunk_bytes=st.integers(1024, 4 << 20),
    chunks=st.none() | st.binary(max_size=200),
)
def test_fuzz_whatever_is_signed_is_safe_or_refused(
    entries: list[tuple[str, int]], chunk_bytes: int, chunks: bytes | None
) -> None:
    count = -(-sum(size for _, size in entries) // chunk_bytes)
    if chunks is None:
        chunks = bytes(32 * min(count, 1 << 16))
    files = tuple(FileEntry(name=name, size=size) for name, size in entries)
    manifest = manifest_of({"a": 1}, files=files, chunk_bytes=chunk_bytes, chunks=chunks)
    try:
        artifact = Artifact.open(seal(HUB, manifest), HUB.public_key)
    except (ManifestError, WireError):
        return
    root = Path("/store/files")
    for file in artifact.manifest.files:
        assert (root / file.name).resolve().is_relative_to(root)
    assert artifact.layout.count * 32 == len(chunks)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_fuzz_changed_envelopes_never_open(data: st.DataObject) -> None:
    envelope = bytearray(seal(HUB, manifest_of({"a": 3000})))
    at = data.draw(st.integers(0, len(envelope) - 1))
    envelope[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(EchoError):
        Artifact.open(bytes(envelope), HUB.public_key)


@settings(max_examples=300)
@given(count=st.integers(1, 300), data=st.data())
def test_bitmaps(count: int, data: st.DataObject) -> None:
    members = data.draw(st.sets(st.integers(0, count - 1)))
    bits = sum(1 << index for index in members)
    assert list(bitmap.indices(bits)) == sorted(members)
    assert bitmap.from_bytes(bitmap.to_bytes(bits, count), count) == bits
    assert bits | bitmap.full(count) == bitmap.full(count)
    if members:
        start = data.draw(st.integers(0, count - 1))
        assert bitmap.lowest(bits) == min(members)
        above = [index for index in members if index >= start]
        assert bitmap.near(bits, start) == min(above or members)
    holdings = data.draw(st.lists(st.integers(0, bitmap.full(count)), max_size=6))
    levels = bitmap.by_rarity(bits, holdings)
    for index in range(count):
        held = sum(holding >> index & 1 for holding in holdings)
        expected = [min(held, 3) == level and index in members for level in range(4)]
        assert [bool(level >> index & 1) for level in levels] == expected


@pytest.mark.parametrize("data", [bytes(1), bytes(3), b"\x00\x08", b"\xff\xff"])
def test_bitmaps_of_another_size_are_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        bitmap.from_bytes(data, 11)


def delta_of(target: Artifact, **changes: object) -> Manifest:
    joins = DeltaOf(parent=bytes(32), target=target.id)
    return manifest_of({"delta": 900}, **{"kind": "delta", "delta": joins, **changes})


def test_a_delta_leads_to_its_target() -> None:
    target = Artifact.sign(HUB, manifest_of({"a": 1000}))
    check_leads_to(Artifact.sign(HUB, delta_of(target)), target)


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": "adapter"},
        {"delta": None},
        {"delta": DeltaOf(parent=bytes(32), target=bytes(32))},
        {"files": (FileEntry(name="other", size=900),)},
        {"files": (FileEntry(name="delta", size=890), FileEntry(name="more", size=10))},
    ],
)
def test_a_manifest_that_is_half_a_deltas_is_refused(changes: dict[str, object]) -> None:
    target = Artifact.sign(HUB, manifest_of({"a": 1000}))
    with pytest.raises(ManifestError, match="delta"):
        Artifact.sign(HUB, delta_of(target, **changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"run_id": "other"},
        {"version": 2},
        {"delta": DeltaOf(parent=bytes(32), target=bytes(31) + b"x")},
        {"files": (FileEntry(name="delta", size=1000),)},
    ],
)
def test_a_delta_that_leads_elsewhere_is_refused(changes: dict[str, object]) -> None:
    target = Artifact.sign(HUB, manifest_of({"a": 1000}))
    with pytest.raises(ManifestError):
        check_leads_to(Artifact.sign(HUB, delta_of(target, **changes)), target)


def test_a_delta_of_another_hub_and_what_is_none_are_refused() -> None:
    target = Artifact.sign(HUB, manifest_of({"a": 1000}))
    for delta in (Artifact.sign(Identity.create(), delta_of(target)), target):
        with pytest.raises(ManifestError, match="is no delta to"):
            check_leads_to(delta, target)
