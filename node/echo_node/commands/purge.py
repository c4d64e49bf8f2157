"""`echo-node purge`: everything this program put on this computer, counted, and removed.

Promises: only folders and files that this program made are touched, never a link's target; what
will go is said before; a running node is not pulled out from under itself.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from echo_node.control.lock import refuse_running, running_here
from echo_node.paths import NodeFolder
from echo_node.service.manager import manager
from echo_p2p.errors import ConfigError, FolderError

KEYS = frozenset({"identity.pem", "identity.exported", "person.pem", "voucher"})


@dataclass(frozen=True)
class Found:
    """One thing to delete: what it is to a person, where, how many files and bytes."""

    what: str
    path: Path
    files: int
    bytes: int


OURS = {
    "store": "downloaded models and versions",
    "logs": "logs",
    "credit": "statements of what you gave",
    "identity.pem": "this machine's key: its standing and credit cannot be carried on without it",
    "person.pem": "the key of your own that vouches for your machines",
    "voucher": "your name for this machine",
    "identity.exported": "a mark that the key was exported",
    "updates": "a release of this program that was not installed yet",
    "speeds.json": "how fast engines were here, measured by `doctor` and `bench`",
    "data.json": "how much was transferred, by day and month",
    "node.lock": "the mark of a running node",
    "control.sock": "where a running node listens",
}
"""What this program keeps in its data folder, and what that is to a person."""


def look(folder: NodeFolder, *, also: Iterable[Path] = (), keep_keys: bool = False) -> list[Found]:
    """What there is to delete: in the data folder, and `also` (configuration, a service)."""
    found = []
    try:
        ours = [folder.root / name for name in OURS if not (keep_keys and name in KEYS)]
        for path in [*ours, *also]:
            if path.exists() or path.is_symlink():
                files = [path] if path.is_symlink() or path.is_file() else _files(path)
                size = sum(file.lstat().st_size for file in files)
                found.append(Found(OURS.get(path.name, path.name), path, len(files), size))
    except OSError as error:
        raise FolderError(f"cannot look into {folder.root}: {error.strerror}.") from error
    return found


def check_end(folder: NodeFolder) -> None:
    """AlreadyRunningError if a node runs here that is no service (`stop_service` ends that one)."""
    if not _is_service():
        refuse_running(folder)


def _is_service() -> bool:
    try:
        return manager().state().installed
    except ConfigError:  # no service manager, so no service
        return False


def stop_service() -> None:
    """A node that runs as a service is stopped, and its service removed."""
    if _is_service():
        manager().uninstall()


def delete(folder: NodeFolder, found: Sequence[Found]) -> None:
    """Delete what was found, and the data folder if nothing is left in it.

    AlreadyRunningError if a node is running there.
    """
    if not folder.root.is_dir():
        _delete_all(found)
        return
    with running_here(folder):
        _delete_all(found)
        folder.lock.unlink(missing_ok=True)
    if not any(folder.root.iterdir()):
        folder.root.rmdir()


def _delete_all(found: Sequence[Found]) -> None:
    for one in found:
        try:
            if one.path.is_dir() and not one.path.is_symlink():
                shutil.rmtree(one.path)
            else:
                one.path.unlink(missing_ok=True)
        except OSError as error:
            raise FolderError(
                f"cannot delete {error.filename or one.path}: {error.strerror}.",
                fix="What comes before it is gone already; delete the rest yourself.",
            ) from error


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()]
