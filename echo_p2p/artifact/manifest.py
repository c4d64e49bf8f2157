"""Manifests: what an artifact is made of, and whether a description of one can be believed.

An artifact's files, laid end to end in the order of the manifest, are cut into chunks of
`chunk_bytes` (the last may be shorter). Promises: a manifest that passes `check_manifest` has
exactly as many digests as chunks, at least one byte, and only names that are safe and distinct on
every file system a node may have (POSIX, macOS, Windows); every refusal is a `ManifestError`.
Nothing here writes to disk.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Literal

from blake3 import blake3

from echo_p2p.artifact.disk import read_slices
from echo_p2p.envelope import open_envelope, seal
from echo_p2p.errors import ManifestError
from echo_p2p.identity import Identity
from echo_p2p.wire import MAX_CHUNKS, DeltaOf, FileEntry, Manifest

DIGEST_BYTES = 32
MAX_FILES = 1000  # as in wire.Manifest
MAX_NAME = 200  # as in wire.FileEntry
Kind = Literal["base", "adapter", "delta"]
DELTA_FILE = "delta"
"""The one file of a delta."""

# Printable ASCII without what some file system or shell gives a meaning: no normalisation forms,
# no look-alikes, and lower-casing is the whole of case folding.
_PART = re.compile(r"[A-Za-z0-9!#$%&'()+,.;=@\[\]^_`{}~ -]+")
_RESERVED = re.compile(
    r"(con|prn|aux|nul|com[0-9]|lpt[0-9]|conin\$|conout\$)(\..*)?", re.IGNORECASE
)


@dataclass(frozen=True)
class Slice:
    """A range of one file."""

    name: str
    offset: int
    length: int


class Layout:
    """Where each chunk lies in the files. Pure arithmetic."""

    def __init__(self, files: Sequence[FileEntry], chunk_bytes: int) -> None:
        self.files = [file for file in files if file.size]
        self.chunk_bytes = chunk_bytes
        self._starts = [0, *accumulate(file.size for file in self.files)]
        self.total_bytes = self._starts[-1]
        self.count = -(-self.total_bytes // chunk_bytes)

    def size(self, index: int) -> int:
        """Bytes in chunk `index`."""
        return min(self.chunk_bytes, self.total_bytes - index * self.chunk_bytes)

    def slices(self, index: int) -> Iterator[Slice]:
        """The file ranges that chunk `index` is made of, in order."""
        position = index * self.chunk_bytes
        end = position + self.size(index)
        which = bisect_right(self._starts, position) - 1
        while position < end:
            upto = min(end, self._starts[which + 1])
            offset = position - self._starts[which]
            yield Slice(self.files[which].name, offset, upto - position)
            position, which = upto, which + 1


@dataclass(frozen=True, eq=False)
class Artifact:
    """A checked manifest with the bytes that were signed. Its id names it everywhere."""

    manifest: Manifest
    payload: bytes
    envelope: bytes
    id: bytes
    key: bytes

    @classmethod
    def open(cls, envelope: bytes, hub_key: bytes | None) -> Artifact:
        """Verify an envelope from anywhere: signed by the hub (None: by anyone), and consistent.

        Raises:
            SignatureError, EnvelopeError, WireError: not a manifest signed by that key.
            ManifestError: signed, but inconsistent.
        """
        opened = open_envelope(envelope, Manifest, key=hub_key)
        check_manifest(opened.message)
        return cls(
            opened.message, opened.payload, envelope, artifact_id(opened.payload), opened.key
        )

    @classmethod
    def sign(cls, identity: Identity, manifest: Manifest) -> Artifact:
        """The hub's side: seal a manifest."""
        return cls.open(seal(identity, manifest), identity.public_key)

    @cached_property
    def layout(self) -> Layout:
        return Layout(self.manifest.files, self.manifest.chunk_bytes)

    def digest(self, index: int) -> bytes:
        """BLAKE3 digest that chunk `index` must have."""
        return self.manifest.chunks[index * DIGEST_BYTES : (index + 1) * DIGEST_BYTES]

    def holds(self, index: int, data: bytes | memoryview) -> bool:
        """Whether these bytes are chunk `index`: as many, and of its digest."""
        if not 0 <= index < self.layout.count or len(data) != self.layout.size(index):
            return False
        return blake3(data).digest() == self.digest(index)

    def __str__(self) -> str:
        manifest = self.manifest
        return f"{manifest.kind} {manifest.version} of {manifest.run_id} ({self.id.hex()[:12]})"


def artifact_id(payload: bytes) -> bytes:
    """Id of the artifact whose manifest was signed as these bytes: their BLAKE3 digest."""
    return blake3(payload).digest()


def check_manifest(manifest: Manifest) -> None:
    """ManifestError unless names are safe and sizes, chunks and digests fit together."""
    _check_names([file.name for file in manifest.files])
    total = sum(file.size for file in manifest.files)
    _check_size(total, manifest.chunk_bytes)
    expected = -(-total // manifest.chunk_bytes) * DIGEST_BYTES
    if len(manifest.chunks) != expected:
        raise ManifestError(
            f"a manifest with {len(manifest.chunks)} bytes of chunk digests; "
            f"{total} bytes in chunks of {manifest.chunk_bytes} need {expected}."
        )
    _check_delta(manifest)


def _check_delta(manifest: Manifest) -> None:
    if (manifest.kind == "delta") != (manifest.delta is not None):
        raise ManifestError(f"a manifest of kind {manifest.kind} that is and is not a delta's.")
    if manifest.delta is None:
        return
    if [file.name for file in manifest.files] != [DELTA_FILE]:
        raise ManifestError(f"a delta's manifest with other files than {DELTA_FILE!r}.")
    if manifest.delta.parent == manifest.delta.target:
        raise ManifestError("a delta from an artifact to itself.")


def check_leads_to(delta: Artifact, target: Artifact) -> None:
    """ManifestError unless `delta` is announced for `target`, by the same key, and is smaller."""
    ours, theirs = delta.manifest, target.manifest
    if ours.delta is None or ours.delta.target != target.id or delta.key != target.key:
        raise ManifestError(f"{delta} is no delta to {target}.")
    if (ours.run_id, ours.version) != (theirs.run_id, theirs.version):
        raise ManifestError(f"{delta} leads to {target}, which is of another run or version.")
    if delta.layout.total_bytes >= target.layout.total_bytes:
        raise ManifestError(f"{delta} is no smaller than {target}.")


def _check_size(total: int, chunk_bytes: int) -> None:
    if total == 0:
        raise ManifestError("an artifact without a single byte.")
    if total > chunk_bytes * MAX_CHUNKS:
        raise ManifestError(
            f"an artifact of {total} bytes in chunks of {chunk_bytes} bytes: "
            f"that is more than {MAX_CHUNKS} chunks.",
            fix="Use larger chunks.",
        )


def _check_names(names: Sequence[str]) -> None:
    files: set[str] = set()
    folders: set[str] = set()
    for name in names:
        if len(name) > MAX_NAME:
            raise ManifestError(f"a file name of {len(name)} characters: {name[:40]!r}...")
        parts = name.split("/")
        for part in parts:
            if not _PART.fullmatch(part) or part[-1] in ". " or part[0] == " ":
                raise ManifestError(f"a manifest with the unsafe file name {name!r}.")
            if _RESERVED.fullmatch(part):
                raise ManifestError(f"a manifest with the reserved file name {name!r}.")
        folded = name.lower()
        if folded in files:
            raise ManifestError(f"a manifest that names the file {name!r} twice.")
        files.add(folded)
        folded_parts = folded.split("/")
        folders.update("/".join(folded_parts[:depth]) for depth in range(1, len(parts)))
    for both in files & folders:
        raise ManifestError(f"a manifest in which {both!r} is a file and a folder.")


def build_manifest(
    root: Path,
    *,
    run_id: str,
    kind: Kind,
    version: int,
    chunk_bytes: int,
    created_at: float,
    delta: DeltaOf | None = None,
) -> Manifest:
    """Describe the files under `root` (sorted by name; reads each once, a chunk at a time)."""
    files = tuple(_files_under(root))
    _check_names([file.name for file in files])
    layout = Layout(files, chunk_bytes)
    _check_size(layout.total_bytes, chunk_bytes)
    content = blake3()
    digests = bytearray()
    for index in range(layout.count):
        data = read_slices(root, layout.slices(index))
        if len(data) != layout.size(index):
            raise ManifestError(f"{root} changed while it was being read.")
        content.update(data)
        digests += blake3(data).digest()
    manifest = Manifest(
        run_id=run_id,
        kind=kind,
        version=version,
        files=files,
        chunk_bytes=chunk_bytes,
        chunks=bytes(digests),
        content=content.digest(),
        created_at=created_at,
        delta=delta,
    )
    check_manifest(manifest)
    return manifest


def _files_under(root: Path) -> list[FileEntry]:
    entries = []
    for folder, folders, names in os.walk(root):
        here = Path(folder)
        # os.walk does not enter linked folders; what they hold must not go missing silently
        linked = [name for name in folders if (here / name).is_symlink()]
        odd = [name for name in names if not (here / name).is_file()]
        for name in linked + odd:
            raise ManifestError(f"{here / name} is neither a regular file nor a folder.")
        for name in names:
            path = here / name
            relative = path.relative_to(root).as_posix()
            entries.append(FileEntry(name=relative, size=path.stat().st_size))
    if not 1 <= len(entries) <= MAX_FILES:
        raise ManifestError(
            f"{root} holds {len(entries)} files; an artifact has between 1 and {MAX_FILES}."
        )
    return sorted(entries, key=lambda entry: entry.name)
