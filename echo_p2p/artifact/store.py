"""The artifacts on this machine's disk, whole and partial.

    <root>/lock                     held by the one process that uses the store; names its pid
    <root>/complete/<id>/           envelope, and files/ as the manifest names them
    <root>/partial/<id>/            the same, files at their full size with holes in them
    <root>/trash/                   on its way out; emptied when the store is opened

Promises:

- Nothing half-written is ever visible: chunks are written in place under `partial/`, and a folder
  gets to `complete/` by one rename, after the digest of all its contents was read back from disk.
  This holds when the process is killed at any byte. Every file is fsynced before that rename, so
  after a power failure a name in `complete/` has its data; folders are not fsynced, so the rename
  itself may be forgotten, and then the artifact is found again under `partial/`.
- There is no journal. What a partial download holds is found out by the digests of its chunks.
- A chunk is checked against its digest each time it is read. One that went bad on disk turns a
  complete artifact back into a partial one, which `begin` then repairs. This happens under a pin
  too: the path is gone, so that loading fails rather than loads garbage.
- The sizes of all artifacts together (a partial one counts in full) stay within the cap. Room is
  made by removing the least recently used, never what is pinned, being fetched or being read.

All methods may be called from any thread. Files have mode 0644 and folders 0755 (less the umask).
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from blake3 import blake3

from echo_p2p.artifact import bitmap
from echo_p2p.artifact.disk import (
    ENVELOPE,
    FILES,
    disk_errors,
    fsync,
    lay_out,
    lock,
    read_slices,
    sizes_fit,
    write_slices,
)
from echo_p2p.artifact.entry import Entry, choose_excess, choose_victims, load_entry
from echo_p2p.artifact.manifest import Artifact
from echo_p2p.errors import ArtifactError, ChunkError, ManifestError, StoreError

_ID_NAME = re.compile("[0-9a-f]{64}")


class Store:
    """A folder of artifacts under a size cap.

    Args:
        root: made if it is missing. One process at a time: StoreError names the other's pid.
        cap_bytes: most bytes of artifacts kept; None sets no limit.
    """

    def __init__(self, root: Path, *, cap_bytes: int | None) -> None:
        self.root = root
        self.cap_bytes = cap_bytes
        self._mutex = threading.RLock()  # held for decisions and renames, never while data moves
        self._clock = itertools.count(1)
        self._trash_names = itertools.count()
        self._entries: dict[bytes, Entry] = {}
        with disk_errors(f"open the store {root}"):
            root.mkdir(parents=True, exist_ok=True)
            self._lock = lock(root / "lock")
            try:
                for name in ("complete", "partial", "trash"):
                    (root / name).mkdir(exist_ok=True)
                for left_over in (root / "trash").iterdir():
                    shutil.rmtree(left_over)
                self._load()
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        """Let another process have the store."""
        os.close(self._lock)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- what is here ---------------------------------------------------------------------------

    def path(self, artifact_id: bytes) -> Path | None:
        """Folder with the files of a complete artifact. Without a pin it may go at any time."""
        with self._mutex:
            entry = self._complete(artifact_id)
            return None if entry is None else self._touch(entry).files

    def get(self, artifact_id: bytes) -> Artifact | None:
        """A complete artifact's manifest."""
        with self._mutex:
            entry = self._complete(artifact_id)
            return None if entry is None else entry.artifact

    def complete(self) -> list[Artifact]:
        """Every complete artifact."""
        with self._mutex:
            return [entry.artifact for entry in self._entries.values() if entry.complete]

    def unfinished(self) -> list[Artifact]:
        """Every artifact that is here in part and that nobody is fetching."""
        with self._mutex:
            idle = [e for e in self._entries.values() if not e.complete and not e.fetching]
            return [entry.artifact for entry in idle]

    def have(self, artifact_id: bytes) -> int | None:
        """Chunks (see `bitmap`) of a complete artifact or of one being fetched, else None."""
        with self._mutex:
            entry = self._entries.get(artifact_id)
            return entry.have if entry and (entry.complete or entry.fetching) else None

    @contextmanager
    def pin(self, artifact_id: bytes) -> Iterator[Path]:
        """Keep a complete artifact from being removed for the length of the block."""
        with self._mutex:
            entry = self._complete(artifact_id)
            if entry is None:
                raise StoreError(f"the artifact {artifact_id.hex()[:12]} is not complete here.")
            self._touch(entry).uses += 1
        try:
            yield entry.files
        finally:
            self._release(entry)

    def remove(self, artifact_id: bytes) -> None:
        """Forget an artifact; what it takes on disk is freed once nobody uses it any more."""
        with self._mutex:
            entry = self._entries.pop(artifact_id, None)
            if entry is None:
                return
            entry.removed = True
            entry.uses += 1
        self._release(entry)

    def set_cap(self, cap_bytes: int | None) -> None:
        """Another cap from now on: the least recently used goes, but nothing that is in use."""
        with self._mutex:
            self.cap_bytes = cap_bytes
            if cap_bytes is None:
                return
            victims = choose_excess(self._entries.values(), cap_bytes)
            removed = [self._forget(entry) for entry in victims]
        with disk_errors(f"make room in {self.root}"):
            for path in removed:
                shutil.rmtree(path)

    @property
    def held_bytes(self) -> int:
        """Of all artifacts; a partial one counts in full."""
        with self._mutex:
            return sum(entry.size for entry in self._entries.values())

    # --- reading --------------------------------------------------------------------------------

    def read_chunk(self, artifact_id: bytes, index: int) -> bytes | None:
        """A verified chunk, or None if it is not here.

        ChunkError: it was here but its bytes on disk have changed; it is here no more.
        """
        with self._mutex:
            entry = self._entries.get(artifact_id)
            if entry is None or not 0 <= index < entry.artifact.layout.count:
                return None
            if not entry.have >> index & 1:
                return None
            self._touch(entry).uses += 1
        try:
            data = self._read_good(entry, index)
        finally:
            self._release(entry)
        if data is None:
            self._lose(entry, 1 << index)
            raise ChunkError(
                f"chunk {index} of {entry.artifact} is corrupt on disk.", fix="Fetch it again."
            )
        return data

    def verify(self, artifact_id: bytes) -> bool:
        """Read a complete artifact whole; False if it is not complete, or no longer so."""
        with self._mutex:
            entry = self._complete(artifact_id)
            if entry is None:
                return False
            entry.uses += 1
        try:
            everything = bitmap.full(entry.artifact.layout.count)
            lost = everything & ~self._scan(entry)
        finally:
            self._release(entry)
        if lost:
            self._lose(entry, lost)
        return not lost

    # --- writing --------------------------------------------------------------------------------

    def begin(self, artifact: Artifact) -> Partial:
        """Start or resume fetching an artifact; chunks already on disk are verified first.

        StoreError: no room, complete already, or being fetched already.
        """
        with self._mutex:
            entry = self._entries.get(artifact.id)
            if entry is not None and (entry.complete or entry.fetching):
                state = "complete" if entry.complete else "being fetched"
                raise StoreError(f"{artifact} is {state} already.")
            if entry is None:
                removed = self._make_room(artifact)
                folder = self.root / "partial" / artifact.id.hex()
                entry = self._entries[artifact.id] = Entry(artifact, folder, complete=False)
            else:
                removed = []
            self._touch(entry).fetching = True
            entry.uses += 1
        partial = Partial(self, entry)
        try:
            with disk_errors(f"store {artifact}"):
                for path in removed:
                    shutil.rmtree(path)
                if lay_out(entry.folder, artifact):
                    found = self._scan(entry)
                    with self._mutex:
                        entry.have = found
        except BaseException:
            partial.close()
            raise
        return partial

    def add(self, artifact: Artifact, source: Path) -> Path:
        """Copy an artifact's files in from a folder; they must be what its manifest says."""
        if (path := self.path(artifact.id)) is not None:
            return path
        with self.begin(artifact) as partial:
            self._copy_lacking(partial, source)
            try:
                return partial.finish()
            except ChunkError:  # chunks of an earlier copy had rotted
                self._copy_lacking(partial, source)
                return partial.finish()

    def _copy_lacking(self, partial: Partial, source: Path) -> None:
        artifact = partial.artifact
        for index in bitmap.indices(partial.lacks):
            with disk_errors(f"read {source}"):
                data = read_slices(source, artifact.layout.slices(index))
            if not artifact.holds(index, data):
                raise ManifestError(f"{source} does not hold the bytes of {artifact}.")
            partial.write(index, data)

    # --- inside ---------------------------------------------------------------------------------

    def _complete(self, artifact_id: bytes) -> Entry | None:
        entry = self._entries.get(artifact_id)
        return entry if entry is not None and entry.complete else None

    def _touch(self, entry: Entry) -> Entry:
        entry.last_used = next(self._clock)
        # the order of use outlives the process; losing it costs nothing but a worse choice
        with disk_errors(f"use {entry.artifact}"):
            if entry.folder.exists():
                os.utime(entry.folder)
        return entry

    def _release(self, entry: Entry) -> None:
        with self._mutex:
            entry.uses -= 1
            if not entry.removed or entry.uses:
                return
            with disk_errors(f"remove {entry.artifact}"):
                trashed = self._to_trash(entry.folder)
        with disk_errors(f"remove {entry.artifact}"):
            shutil.rmtree(trashed)

    def _load(self) -> None:
        for state in ("complete", "partial"):
            for folder in list((self.root / state).iterdir()):
                if not _ID_NAME.fullmatch(folder.name):
                    continue  # not ours
                entry = load_entry(folder, complete=state == "complete")
                if entry is None:
                    shutil.rmtree(self._to_trash(folder))
                    continue
                known = self._entries.setdefault(entry.artifact.id, entry)
                if known.folder != folder:
                    shutil.rmtree(self._to_trash(folder))
                elif state == "complete" and not sizes_fit(folder, entry.artifact):
                    self._lose(entry, entry.have)
        by_age = sorted(self._entries.values(), key=lambda entry: entry.folder.stat().st_mtime_ns)
        for entry in by_age:
            entry.last_used = next(self._clock)

    def _make_room(self, artifact: Artifact) -> list[Path]:
        """Forget the least recently used until `artifact` fits; returns what is to be deleted."""
        if self.cap_bytes is None:
            return []
        return [
            self._forget(entry)
            for entry in choose_victims(self._entries.values(), artifact, self.cap_bytes)
        ]

    def _forget(self, entry: Entry) -> Path:
        del self._entries[entry.artifact.id]
        with disk_errors(f"remove {entry.artifact}"):
            return self._to_trash(entry.folder)

    def _to_trash(self, folder: Path) -> Path:
        trashed = self.root / "trash" / f"{folder.name}.{next(self._trash_names)}"
        folder.rename(trashed)
        return trashed

    def _lose(self, entry: Entry, lost: int) -> None:
        """These chunks turned out to be bad on disk."""
        with self._mutex:
            entry.have &= ~lost
            if entry.complete:
                entry.complete = False
                if entry.removed:
                    return
                with disk_errors(f"set {entry.artifact} aside"):
                    self._move(entry, "partial")

    def _move(self, entry: Entry, state: str) -> None:
        folder = self.root / state / entry.artifact.id.hex()
        if folder.exists():
            self._to_trash(folder)
        entry.folder.rename(folder)
        entry.folder = folder

    def _read_good(self, entry: Entry, index: int) -> bytes | None:
        """A chunk's bytes if they match its digest; None if they do not, or cannot be read."""
        while True:
            folder = entry.folder
            try:
                data = read_slices(folder / FILES, entry.artifact.layout.slices(index))
            except OSError:
                data = b""
            if entry.artifact.holds(index, data):
                return data
            if folder == entry.folder:  # else it was renamed while we looked: look again
                return None

    def _scan(self, entry: Entry) -> int:
        count = entry.artifact.layout.count
        good = bytearray((count + 7) // 8)
        for index in range(count):
            if self._read_good(entry, index) is not None:
                good[index // 8] |= 1 << index % 8
        return bitmap.from_bytes(bytes(good), count)


class Partial:
    """An artifact being fetched; a context manager, so that it does not stay "in use" for ever.

    Closing keeps what was fetched on disk: a later `begin` resumes.
    """

    def __init__(self, store: Store, entry: Entry) -> None:
        self._store = store
        self._entry = entry
        self._open = True
        self.artifact = entry.artifact

    def __enter__(self) -> Partial:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def have(self) -> int:
        """Chunks that are verified and on disk (see `bitmap`)."""
        return self._entry.have

    @property
    def lacks(self) -> int:
        """The other chunks."""
        return bitmap.full(self.artifact.layout.count) & ~self._entry.have

    def write(self, index: int, data: bytes | memoryview) -> None:
        """Put a chunk in its place.

        ChunkError: these bytes are not that chunk; nothing was written.
        StoreError: the disk is full or broken; the chunk does not count as here.
        """
        if not self.artifact.holds(index, data):
            raise ChunkError(f"{len(data)} bytes that are not chunk {index} of {self.artifact}.")
        with disk_errors(f"write chunk {index} of {self.artifact}"):
            write_slices(self._entry.files, self.artifact.layout.slices(index), data)
        with self._store._mutex:
            self._entry.have |= 1 << index

    def finish(self) -> Path:
        """Read everything back, make it durable, make it visible; returns the folder of files.

        ChunkError: chunks are bad on disk; they are lacking again.
        ManifestError: every chunk is right and the whole is not, so the manifest lies.
        """
        entry, store = self._entry, self._store
        if self.lacks:
            raise ArtifactError(f"{self.artifact} still lacks {self.lacks.bit_count()} chunks.")
        if self._digest() != self.artifact.manifest.content:
            lost = bitmap.full(self.artifact.layout.count) & ~store._scan(entry)
            if not lost:
                raise ManifestError(f"{self.artifact} is not what its manifest says it adds up to.")
            store._lose(entry, lost)
            raise ChunkError(f"{lost.bit_count()} chunks of {self.artifact} are corrupt on disk.")
        with disk_errors(f"complete {self.artifact}"):
            for file in self.artifact.manifest.files:
                fsync(entry.files / file.name)
            fsync(entry.folder / ENVELOPE)
            with store._mutex:
                if entry.removed:
                    raise StoreError(f"{self.artifact} was removed while it was being fetched.")
                store._move(entry, "complete")
                entry.complete = True
                store._touch(entry)
        return entry.files

    def _digest(self) -> bytes:
        """Of all that is on disk, in order; of less if some of it cannot be read."""
        content, layout = blake3(), self.artifact.layout
        with suppress(OSError):
            for index in range(layout.count):
                content.update(read_slices(self._entry.files, layout.slices(index)))
        return content.digest()

    def close(self) -> None:
        """Stop fetching."""
        if self._open:
            self._open = False
            self._entry.fetching = False
            self._store._release(self._entry)
