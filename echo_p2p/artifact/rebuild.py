"""Deltas in a store: made of two artifacts that are in it, and turned into the second again.

Promises: a delta is used on its parent alone; what it decodes to is written a chunk at a time, and
only where it matches the target's own signed digests, so that a target that was rebuilt becomes
visible exactly as one that was fetched does: whole, by one rename. Whatever is wrong with a delta
is a `DeltaError`; the chunks that came before it stay, and count when the target is fetched. In
memory are two chunks and a few blocks of the codec, however large the artifacts.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import ExitStack
from pathlib import Path

from echo_p2p.artifact.delta import decode, encode
from echo_p2p.artifact.disk import disk_errors
from echo_p2p.artifact.manifest import Artifact
from echo_p2p.artifact.segments import plan
from echo_p2p.artifact.store import Partial, Store
from echo_p2p.errors import ChunkError, DeltaError, ManifestError

MOST_OF_SNAPSHOT = 0.9
"""A delta is sent if it is smaller than this share of the full snapshot.

Making one and applying it costs about 10 ms of CPU per MB of the snapshot (benchmarks/delta.py). At
this share, that is won back where bytes come at 10 MB/s; on slower ways there is a gain. Adapters
of real runs are at 0.6 to 0.75, and gain up to 25 MB/s and more.
"""


def is_worth_sending(delta_bytes: int, snapshot_bytes: int) -> bool:
    """Whether a delta of this size saves time, transfer and computing counted together."""
    return delta_bytes < MOST_OF_SNAPSHOT * snapshot_bytes


class StoredBytes:
    """The files of a complete artifact end to end, each chunk verified as it is read."""

    def __init__(self, store: Store, artifact: Artifact) -> None:
        self.artifact = artifact
        self._store = store
        self._index = -1
        self._chunk = b""
        self._position = 0

    def at(self, offset: int, length: int) -> bytes:
        """The bytes of a range that lies within the artifact. ChunkError if they rotted."""
        size = self.artifact.layout.chunk_bytes
        parts = []
        while length:
            index, skip = divmod(offset, size)
            if index != self._index:
                self._chunk, self._index = self._read(index), index
            part = self._chunk[skip : skip + length]
            parts.append(part)
            offset, length = offset + len(part), length - len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def next(self, length: int) -> bytes:
        """The bytes after those that `next` returned before, fewer at the end."""
        length = min(length, self.artifact.layout.total_bytes - self._position)
        self._position += length
        return self.at(self._position - length, length)

    def _read(self, index: int) -> bytes:
        chunk = self._store.read_chunk(self.artifact.id, index)
        if chunk is None:
            raise ChunkError(f"{self.artifact} is not here any more.")
        return chunk


def make_delta(store: Store, parent: Artifact, target: Artifact, out: Path) -> int | None:
    """Write the delta between two complete artifacts to the file `out`; its size in bytes.

    None, and no file, as soon as it is not worth sending.

    Raises:
        ChunkError: one of them is not, or no longer, complete and sound here.
        StoreError: the disk is full or broken.
    """
    old, new = StoredBytes(store, parent), StoredBytes(store, target)
    segments = plan(target.manifest.files, new.at, parent.manifest.files, old.at)
    written = 0
    with disk_errors(f"write a delta to {target}"), out.open("wb") as file:
        for piece in encode(segments, new.at, old.at):
            written += file.write(piece)
            if not is_worth_sending(written, target.layout.total_bytes):
                break
    if is_worth_sending(written, target.layout.total_bytes):
        return written
    out.unlink()
    return None


def rebuild(store: Store, delta: Artifact, target: Artifact) -> Generator[int, None, None]:
    """Make `target` complete in the store out of `delta` and its parent; both must be complete.

    A generator, so that it can be stopped between any two chunks by closing it: what it yields are
    the bytes done so far.

    Raises:
        DeltaError: it does not decode to the target.
        StoreError: no room, the disk failed, or the target is here or being fetched already.
        ChunkError: the delta or the parent rotted on disk.
    """
    assert delta.manifest.delta is not None
    parent = store.get(delta.manifest.delta.parent)
    if parent is None:
        raise DeltaError(f"the parent of {delta} is not here.", fix="Fetch the full snapshot.")
    with ExitStack() as stack:
        for used in (delta, parent):
            stack.enter_context(store.pin(used.id))
        partial = stack.enter_context(store.begin(target))
        blocks = decode(
            StoredBytes(store, delta).next,
            StoredBytes(store, parent).at,
            parent_bytes=parent.layout.total_bytes,
            target_bytes=target.layout.total_bytes,
        )
        yield from _fill(partial, blocks)
        try:
            partial.finish()
        except (ChunkError, ManifestError) as error:
            raise DeltaError(f"{target} could not be rebuilt: {error}") from error


def _fill(partial: Partial, blocks: Iterator[bytes]) -> Iterator[int]:
    size = partial.artifact.layout.size
    index = done = 0
    waiting = bytearray()
    for block in blocks:
        waiting += block
        while waiting and len(waiting) >= size(index):
            chunk = bytes(waiting[: size(index)])
            del waiting[: len(chunk)]
            _put(partial, index, chunk)
            index, done = index + 1, done + len(chunk)
            yield done


def _put(partial: Partial, index: int, chunk: bytes) -> None:
    if not partial.lacks >> index & 1 and partial.artifact.holds(index, chunk):
        return
    try:
        partial.write(index, chunk)
    except ChunkError as error:
        raise DeltaError(
            f"the delta to {partial.artifact} decodes to something else in chunk {index}.",
            fix="Fetch the full snapshot.",
        ) from error
