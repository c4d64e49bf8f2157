"""What is fuzzed: each target takes any bytes and raises only if a promise is broken.

A target lets a typed refusal pass (`EchoError`) and checks what was accepted. `seeds` are valid
inputs to begin from. Pure functions of their bytes, so that an input that was found stays a test.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import msgspec
from blake3 import blake3

from echo_p2p import PROTOCOL, wire
from echo_p2p.artifact import bitmap
from echo_p2p.artifact.delta import ReadAt, Segment, decode, encode
from echo_p2p.artifact.manifest import DIGEST_BYTES, Artifact
from echo_p2p.bootstrap import Bootstrap
from echo_p2p.bootstrap_source import default_path
from echo_p2p.envelope import open_envelope, seal
from echo_p2p.errors import ConfigError, DeltaError, EchoError, WireError
from echo_p2p.identity import Identity
from echo_p2p.toml import parse_toml
from echo_p2p.wire import DeltaOf, FileEntry, Manifest, Signed

HUB = Identity.from_seed(bytes(32))
ROOT = Path("/store/files")
DELTA_PARENT = bytes(range(256)) * 2
DELTA_TARGET = DELTA_PARENT[8:408] + bytes(200)

SIGNED = sorted(wire.MAX_SIGNED_BYTES, key=lambda kind: kind.__name__)
UNIONS: list[Any] = [
    wire.HubRequest,
    wire.HubReply,
    wire.SwarmRequest,
    wire.SwarmReply,
    wire.WatchEvent,
]


@dataclass(frozen=True)
class Target:
    """`run` is called with the bytes; it says whether they were accepted."""

    run: Callable[[bytes], bool]
    seeds: Callable[[], list[bytes]]


def envelope(data: bytes) -> bool:
    """Bytes as an envelope: opened only if a key has signed exactly these."""
    accepted = False
    for kind in SIGNED:
        try:
            opened = open_envelope(data, kind)
        except WireError:
            continue
        accepted = True
        assert isinstance(opened.message, kind)
        assert opened.payload in data
    return accepted


def signed(data: bytes) -> bool:
    """Bytes that a key has signed: the payload of an envelope, its kind chosen by the first."""
    kind = SIGNED[data[0] % len(SIGNED)] if data else Manifest
    payload = data[1:]
    try:
        message: Signed = open_envelope(_sealed(kind.__name__, payload), kind).message
    except WireError:
        return False
    assert open_envelope(seal(HUB, message), kind).message == message
    return True


def messages(data: bytes) -> bool:
    """Bytes as each kind of request and reply."""
    accepted = False
    for union in UNIONS:
        try:
            message = wire.decode(data, union)
        except WireError:
            continue
        accepted = True
        assert wire.decode(wire.encode(message), union) == message
    return accepted


def manifest(data: bytes) -> bool:
    """Bytes signed as a manifest: refused, or safe to lay out on disk."""
    try:
        artifact = Artifact.open(_sealed("Manifest", data), HUB.public_key)
    except EchoError:
        return False
    layout, files = artifact.layout, artifact.manifest.files
    assert layout.count * DIGEST_BYTES == len(artifact.manifest.chunks)
    assert layout.total_bytes == sum(file.size for file in files)
    for file in files:
        assert (ROOT / file.name).resolve().is_relative_to(ROOT)
    assert len({file.name.lower() for file in files}) == len(files)
    for index in {0, layout.count // 2, layout.count - 1}:
        size = layout.size(index)
        assert 0 < size <= artifact.manifest.chunk_bytes
        assert sum(piece.length for piece in layout.slices(index)) == size
        assert not artifact.holds(index, bytes(size + 1))
    return True


def chunk_set(data: bytes) -> bool:
    """Bytes as a bitmap; the first two say of how many chunks."""
    count, bits = int.from_bytes(data[:2], "little") + 1, data[2:]
    try:
        members = bitmap.from_bytes(bits, count)
    except WireError:
        return False
    assert members & ~bitmap.full(count) == 0
    assert not bits or bitmap.to_bytes(members, count) == bits
    assert sum(1 << index for index in bitmap.indices(members)) == members
    levels = bitmap.by_rarity(bitmap.full(count), [members, members >> 1])
    assert sum(level.bit_count() for level in levels) == count
    return True


def delta(data: bytes) -> bool:
    """Bytes as a delta: what it decodes to has the size that was promised."""
    parent = memoryview(DELTA_PARENT)

    def parent_at(offset: int, length: int) -> bytes:
        assert 0 <= offset <= offset + length <= len(parent)
        return bytes(parent[offset : offset + length])

    blocks = decode(
        BytesIO(data).read, parent_at, parent_bytes=len(parent), target_bytes=len(DELTA_TARGET)
    )
    try:
        decoded = sum(map(len, blocks))
    except DeltaError:
        return False
    assert decoded == len(DELTA_TARGET)
    return True


def bootstrap(data: bytes) -> bool:
    """Bytes as a bootstrap file."""
    try:
        found = parse_toml(data.decode(errors="surrogateescape"), Bootstrap, source="it")
    except ConfigError as error:
        assert str(error)
        return False
    for run in found.run:
        assert run.hub_addresses
    return True


def _sealed(kind: str, payload: bytes) -> bytes:
    """These bytes validly signed as a message of that kind, whatever they are."""
    signature = HUB.sign(f"echo-p2p/{PROTOCOL}/{kind}".encode() + b"\0" + payload)
    return msgspec.msgpack.encode([PROTOCOL, kind, HUB.public_key, payload, signature])


# --- valid inputs ---------------------------------------------------------------------------------


def _a_manifest() -> Manifest:
    return Manifest(
        run_id="run",
        kind="adapter",
        version=3,
        files=(FileEntry(name="a/b.json", size=700), FileEntry(name="w", size=4000)),
        chunk_bytes=1024,
        chunks=b"".join(blake3(bytes([n])).digest() for n in range(5)),
        content=bytes(32),
        created_at=1.0,
        delta=None,
    )


def _manifests() -> list[bytes]:
    plain = _a_manifest()
    to_plain = msgspec.structs.replace(
        plain,
        kind="delta",
        files=(FileEntry(name="delta", size=4700),),
        delta=DeltaOf(parent=bytes(32), target=b"t" * 32),
    )
    return [wire.encode(plain), wire.encode(to_plain)]


def _signed() -> list[bytes]:
    place = SIGNED.index(Manifest)
    return [bytes([place]) + payload for payload in _manifests()]


def _envelopes() -> list[bytes]:
    receipt = wire.Receipt(
        run_id="run",
        lease_id=bytes(16),
        accepted=False,
        code="stale",
        sentence="Too old.",
        at=1.0,
    )
    return [seal(HUB, _a_manifest()), seal(HUB, receipt)]


def _messages() -> list[bytes]:
    some: list[wire.Message] = [
        wire.Hello(protocol=1, run_id="run", software="s", engine="e", addresses=("/ip4/1.2.3.4",)),
        wire.LeaseRequest(run_id="run", version=3, groups=4, wait_s=5.0),
        wire.HaveRequest(artifact=bytes(32), known=b"\x07", wait_s=1.0),
        wire.ChunkRequest(
            artifact=bytes(32), index=None, lacks=b"\xff", insist=True, backlog_s=1.0
        ),
        wire.ChunkReply(index=2, data=b"data"),
        wire.PeersReply(peers=(("/ip4/1.2.3.4/tcp/1/p2p/x",),)),
        wire.Obtained(artifact=bytes(32), seconds=1.0, from_hub=3, from_peers=4),
        wire.Latest(run=b"r", base=b"b", adapter=None, delta=None, hub_time=1.0),
        wire.Announcement(adapter=b"a", delta=None),
        wire.Refusal(code="no", sentence="No."),
    ]
    return [wire.encode(one) for one in some]


def _chunk_sets() -> list[bytes]:
    return [b"\x09\x00\xff\x01", b"\x00\x01" + bytes(32) + b"\x01", b"\xff\xff"]


def _deltas() -> list[bytes]:
    def at(data: bytes) -> ReadAt:
        return lambda offset, length: data[offset : offset + length]

    pieces = [Segment(400, 4, 8), Segment(100, 2, None), Segment(100, 1, 0)]
    return [b"".join(encode(pieces, at(DELTA_TARGET), at(DELTA_PARENT)))]


def _bootstraps() -> list[bytes]:
    return [default_path().read_bytes()]


TARGETS = {
    "envelope": Target(envelope, _envelopes),
    "signed": Target(signed, _signed),
    "messages": Target(messages, _messages),
    "manifest": Target(manifest, _manifests),
    "bitmap": Target(chunk_set, _chunk_sets),
    "delta": Target(delta, _deltas),
    "bootstrap": Target(bootstrap, _bootstraps),
}
