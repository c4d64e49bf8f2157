"""The store's file operations: small, synchronous, without decisions.

A folder of the store holds `envelope` (the manifest's, as it was signed) and `files/`.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from echo_p2p.errors import DiskFullError, StoreError

if TYPE_CHECKING:
    from echo_p2p.artifact.manifest import Artifact, Slice

ENVELOPE = "envelope"
FILES = "files"
FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""What a system says when a file cannot grow: no room, or a quota or a limit reached."""


@contextmanager
def disk_errors(what: str) -> Iterator[None]:
    """Operating-system errors as StoreError."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise DiskFullError(
                f"cannot {what}: {error.strerror}.",
                fix="Free some disk space. What has come so far is kept, and goes on from there.",
            ) from error
        raise StoreError(f"cannot {what}: {error.strerror or error}.") from error


def lock(path: Path) -> int:
    """Take the lock file for as long as the returned descriptor is open."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
        os.close(descriptor)
        raise StoreError(
            f"{path.parent} is in use by process {holder}.",
            fix="Stop that process, or use another folder.",
        ) from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def lay_out(folder: Path, artifact: Artifact) -> bool:
    """Write the envelope, and every file at its full size. False if nothing was here before."""
    files = folder / FILES
    resumed = files.is_dir()
    files.mkdir(parents=True, exist_ok=True)
    if not (folder / ENVELOPE).is_file():
        new = folder / "envelope.new"
        new.write_bytes(artifact.envelope)
        new.rename(folder / ENVELOPE)
    for file in artifact.manifest.files:
        path = files / file.name
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            os.ftruncate(descriptor, file.size)
        finally:
            os.close(descriptor)
    return resumed


def sizes_fit(folder: Path, artifact: Artifact) -> bool:
    """Whether every file is there at the right size. Says nothing about what is in it."""
    for file in artifact.manifest.files:
        path = folder / FILES / file.name
        if not path.is_file() or path.stat().st_size != file.size:
            return False
    return True


def read_slices(root: Path, slices: Iterator[Slice]) -> bytes:
    """The bytes of these ranges, end to end; shorter where a file ends too soon."""
    parts = []
    for piece in slices:
        with (root / piece.name).open("rb", buffering=0) as file:
            file.seek(piece.offset)
            part = file.read(piece.length)
            parts.append(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def write_slices(root: Path, slices: Iterator[Slice], data: bytes | memoryview) -> None:
    """Put bytes into these ranges of files that exist."""
    rest = memoryview(data)
    for piece in slices:
        descriptor = os.open(root / piece.name, os.O_WRONLY)
        try:
            offset = piece.offset
            part, rest = rest[: piece.length], rest[piece.length :]
            while part:
                written = os.pwrite(descriptor, part, offset)
                part, offset = part[written:], offset + written
        finally:
            os.close(descriptor)


def fsync(path: Path) -> None:
    """Wait until a file's data is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
