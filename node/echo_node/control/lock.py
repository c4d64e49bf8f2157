"""One node for each data folder, and where it listens.

`node.lock` is locked by the operating system for as long as the process lives, however it ends: the
lock of a killed node is gone with it, and what the file still says does not count. It holds the
process id and the path of the socket.

A socket's path may have about 100 bytes, so one in a deep folder is put into a folder of its own
in the user's runtime folder, or the system's temporary one.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from echo_node.paths import NodeFolder
from echo_p2p.errors import AlreadyRunningError, ConfigError, FolderError, NotRunningError

MOST_PATH_BYTES = 100  # 104 with its end on macOS, 108 on Linux


class Holder(msgspec.Struct, frozen=True):
    """Who runs here, and the socket that it listens on."""

    pid: int
    socket: str


@contextmanager
def running_here(folder: NodeFolder) -> Iterator[Holder]:
    """Be the node of this folder for the length of a block.

    AlreadyRunningError, with its process id, if there is one.
    """
    descriptor = _open(folder.lock, os.O_RDWR | os.O_CREAT)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _already_running(folder, _holder(descriptor)) from None
        path = socket_path(folder.root)
        if path.parent != folder.root:
            _own_folder(path.parent)
        holder = Holder(os.getpid(), str(path))
        _write(descriptor, holder, folder.lock)
        yield holder
        os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def _write(descriptor: int, holder: Holder, path: Path) -> None:
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, msgspec.json.encode(holder), 0)
    except OSError as error:
        raise FolderError(
            f"cannot write {path}: {(error.strerror or str(error)).lower()}.",
            fix="Free some disk space, or name another folder with --data-dir.",
        ) from error


def refuse_running(folder: NodeFolder) -> None:
    """AlreadyRunningError if a node runs here now; takes no lock, so another may start after it."""
    try:
        holder = find_running(folder)
    except NotRunningError:
        return
    raise _already_running(folder, holder)


def _already_running(folder: NodeFolder, holder: Holder | None) -> AlreadyRunningError:
    who = "" if holder is None else f" (process {holder.pid})"
    return AlreadyRunningError(
        f"a node with the identity in {folder.root} is running already{who}.",
        fix="See it with `echo-node status`, end it with `echo-node leave`.",
    )


def find_running(folder: NodeFolder) -> Holder:
    """The node of this folder; NotRunningError if there is none."""
    nobody = NotRunningError(
        f"no node is running with the folder {folder.root}.",
        fix="Start one with `echo-node join`, or name its folder with --data-dir.",
    )
    if not folder.lock.exists():
        raise nobody
    descriptor = _open(folder.lock, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(descriptor)
            if holder is None:
                raise NotRunningError("a node is just starting here.", fix="Try again.") from None
            return holder
        raise nobody
    finally:
        os.close(descriptor)


def _open(path: Path, how: int) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, how | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(f"cannot open {path}: {error.strerror}.") from error


def _holder(descriptor: int) -> Holder | None:
    with suppress(msgspec.DecodeError):
        return msgspec.json.decode(os.pread(descriptor, 4096, 0), type=Holder)
    return None


def socket_path(root: Path) -> Path:
    """Where the node of a data folder listens."""
    path = root / "control.sock"
    if len(os.fsencode(path)) <= MOST_PATH_BYTES:
        return path
    name = hashlib.blake2b(os.fsencode(root), digest_size=12).hexdigest()
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and Path(runtime).is_dir() and len(runtime) < MOST_PATH_BYTES // 2:
        return Path(runtime) / f"echo-p2p-{name}" / "control.sock"
    return Path(tempfile.gettempdir()) / f"echo-p2p-{os.getuid()}-{name}" / "control.sock"


def _own_folder(folder: Path) -> None:
    """Make the socket's folder; one that somebody else could have laid out is refused."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise ConfigError(f"{folder} is not a folder of yours.", fix="Remove it, or ask its owner.")
