"""`echo-hub backup`: a whole copy of a run, made while it is served or not.

Promises: the copy is of one moment: the ledger as one transaction left it, the checkpoint of its
version, and those that waiting groups may still be audited with. It appears whole or not at all. It
holds the hub's private key, so nobody but its owner may enter it.

How: a read transaction holds the ledger at one moment, the checkpoints of then are linked, which
takes no time, and both are copied. A committed checkpoint never changes, but the hub may delete it
a few updates later; the links outlive that.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from blake3 import blake3

from echo_hub.backups.contents import (
    FORMAT,
    INDEX,
    FileFacts,
    Index,
    files_below,
    named_paths,
    single_files,
)
from echo_hub.commands.status import run_folder
from echo_hub.config import RunConfig, load_config
from echo_hub.folders import whole_folder
from echo_hub.learner.checkpoint_meta import is_whole
from echo_hub.paths import RunFolder
from echo_p2p import __version__
from echo_p2p.errors import ConfigError, LedgerError
from echo_p2p.identity import Identity

_TRIES = 8
_STAGE = ".backup-"
_BLOCK = 1 << 20


@dataclass(frozen=True)
class BackedUp:
    """A finished backup: at which version (None: none yet), where, how large, in bytes; and the
    paths that run.toml names and that are not in it."""

    run: str
    version: int | None
    out: Path
    bytes: int
    files: int
    outside: list[str]

    def as_dict(self) -> dict[str, Any]:
        return {**self.__dict__, "out": str(self.out)}


def backup_run(root: Path, out: Path) -> BackedUp:
    """Copy the run in a folder into the new or empty folder `out`.

    Raises:
        ConfigError: there is no such run, or something is at `out`, or it cannot be written.
        LedgerError: the ledger is damaged, or of another run.
    """
    folder = run_folder(root)
    config = load_config(folder.config)
    identity = Identity.load(folder.identity)
    out = out.absolute()
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} is there already.", fix="Name a folder that does not exist yet.")
    if out.is_relative_to(folder.root):
        raise ConfigError(f"{out} lies in the run itself.", fix="Name a folder outside of it.")
    try:
        with whole_folder(out, replace=False) as draft:
            draft.chmod(0o700)
            index = _fill(RunFolder(draft), folder, config, identity.peer_id)
            (draft / INDEX).write_bytes(msgspec.json.format(msgspec.json.encode(index)))
    except OSError as error:
        raise ConfigError(
            f"cannot write {out}: {(error.strerror or str(error)).lower()}.",
            fix="Name a folder that does not exist yet, where you may write, with room enough.",
        ) from error
    size = sum(file.bytes for file in index.files.values())
    return BackedUp(index.run, index.version, out, size, len(index.files), index.outside)


def _fill(draft: RunFolder, folder: RunFolder, config: RunConfig, peer_id: str) -> Index:
    inside: list[Path] = []
    outside: list[Path] = []
    for path in named_paths(config):
        (inside if path.resolve().is_relative_to(folder.root.resolve()) else outside).append(path)
    for path in [*single_files(folder), *(file for one in inside for file in files_below(one))]:
        _copy(path, draft.root / path.relative_to(folder.root))
    version = None
    if folder.ledger.is_file():
        with _stage(folder) as stage:
            version = _take(draft, folder, config.run.id, stage)
            for path in files_below(stage):
                _copy(path, draft.checkpoints / path.relative_to(stage))
    return Index(
        format=FORMAT,
        program=f"echo-p2p {__version__}",
        run=config.run.id,
        peer_id=peer_id,
        version=version,
        made_at=time.time(),
        root=str(folder.root),
        outside=[str(path) for path in outside],
        files={
            path.relative_to(draft.root).as_posix(): FileFacts(path.stat().st_size, digest_of(path))
            for path in files_below(draft.root)
        },
    )


def _take(draft: RunFolder, folder: RunFolder, run_id: str, stage: Path) -> int | None:
    """The ledger into the draft and its checkpoints into the stage; the ledger's version."""
    os.close(os.open(draft.ledger, os.O_CREAT | os.O_RDWR, 0o600))
    uri = f"{folder.ledger.absolute().as_uri()}?mode=ro"
    try:
        with (
            closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as source,
            closing(sqlite3.connect(draft.ledger)) as copy,
        ):
            version = _hold(source, folder, stage)
            source.backup(copy)  # of the moment that is held
            (sound,) = copy.execute("PRAGMA quick_check").fetchone()
            (run,) = copy.execute("SELECT value FROM meta WHERE key = 'run_id'").fetchone()
            copy.execute("PRAGMA journal_mode = DELETE")  # one file, without a log beside it
    except sqlite3.Error as error:
        raise LedgerError(f"cannot copy {folder.ledger}: {error}.", fix="Is it damaged?") from error
    if sound != "ok" or run != run_id:
        wrong = f"is damaged: {sound}" if sound != "ok" else f"belongs to the run {run!r}"
        raise LedgerError(f"{folder.ledger} {wrong}.", fix="Nothing was written.")
    return version


def _hold(source: sqlite3.Connection, folder: RunFolder, stage: Path) -> int | None:
    """Hold the ledger at one moment, and link the checkpoints of then; the version of then."""
    for _ in range(_TRIES):
        source.execute("BEGIN")
        (version,) = source.execute("SELECT max(version) FROM updates").fetchone()
        if version is None:
            return None
        for kept in sorted((one for one in folder.kept() if one <= version), reverse=True):
            _link(folder.checkpoint(kept), stage)
        if (stage / folder.checkpoint(version).name).is_dir():
            return int(version)
        source.execute("ROLLBACK")
    raise ConfigError(
        f"{folder.checkpoints} has no checkpoint of the ledger's version {version}.",
        fix="Is the run whole?",
    )


@contextmanager
def _stage(folder: RunFolder) -> Iterator[Path]:
    """A folder beside the checkpoints, gone afterwards."""
    for left in folder.root.glob(f"{_STAGE}*"):  # of a backup that was killed
        shutil.rmtree(left, ignore_errors=True)
    stage = Path(tempfile.mkdtemp(prefix=_STAGE, dir=folder.root))
    try:
        yield stage
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _link(checkpoint: Path, stage: Path) -> None:
    """A checkpoint's files under the stage; nothing if the hub deletes it meanwhile."""
    target = stage / checkpoint.name
    if target.exists():
        return
    try:
        shutil.copytree(checkpoint, target, copy_function=_link_or_copy)
    except (FileNotFoundError, shutil.Error):
        if is_whole(checkpoint):  # so it was not that
            raise
    if not is_whole(target):
        shutil.rmtree(target, ignore_errors=True)


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # a file system without links
        shutil.copyfile(source, target)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    shutil.copymode(source, target)


def digest_of(path: Path) -> str:
    """BLAKE3 digest of a file's bytes, in hexadecimal."""
    digest = blake3()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()
