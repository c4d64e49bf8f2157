"""`echo-hub restore`: a run's folder out of a backup, on this machine or another.

Promises: the folder appears whole or not at all, and never in the place of another; every file in
it is the one that was backed up (run.toml names its new place where it named the old one). The run
goes on under the same key, at the version it had. Two hubs with one key would tell the nodes two
different things: the old one must not run any more, and nothing here can see whether it does.

Versions only rise for nodes. If the old hub went on after the backup, what it published then is
lost, and the run must continue above it: `after` makes the backup's version one that follows.
"""

from __future__ import annotations

import json
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio

from echo_hub.backups.backup import digest_of
from echo_hub.backups.contents import Index, read_index
from echo_hub.config import load_config
from echo_hub.folders import whole_folder
from echo_hub.learner.checkpoint_meta import is_whole, renumber
from echo_hub.ledger.guard import ROLLED_BACK_TO
from echo_hub.ledger.ledger import Ledger
from echo_hub.paths import RunFolder
from echo_p2p.errors import ConfigError, IdentityError
from echo_p2p.identity import Identity


@dataclass(frozen=True)
class Restored:
    """A restored run: the version it goes on from, and the paths that run.toml names and that are
    not on this machine."""

    run: str
    version: int | None
    folder: Path
    missing: list[str]

    def as_dict(self) -> dict[str, Any]:
        return {**self.__dict__, "folder": str(self.folder)}


def restore_run(backup: Path, root: Path, *, after: int | None = None) -> Restored:
    """Make the new or empty folder `root` out of a backup.

    Args:
        after: the newest version that nodes may have seen. The run goes on with the next number,
            with the weights of the backup; what the versions between sampled is not trained on.

    Raises:
        ConfigError: this is no backup, a file of it is not what it was, or something is at `root`.
    """
    backup, root = backup.absolute(), root.absolute()
    index = read_index(backup)
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise ConfigError(
            f"{root} is there already.",
            fix="Name a folder that does not exist yet; a restore overwrites nothing.",
        )
    if after is not None and (index.version is None or after <= index.version):
        raise ConfigError(
            f"the backup is of version {index.version}, which is not before {after}.",
            fix="Leave --after out.",
        )
    try:
        with whole_folder(root, replace=False) as draft:
            _copy_all(index, backup, draft)
            _move_paths(RunFolder(draft), index, root)
            _check_whole(RunFolder(draft), index)
            if after is not None:
                trio.run(_follow, RunFolder(draft), index, after)
                RunFolder(draft).ledger.with_name("ledger.sqlite.lock").unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(
            f"cannot write {root}: {(error.strerror or str(error)).lower()}.",
            fix="Name a folder that does not exist yet, where you may write, with room enough.",
        ) from error
    version = index.version if after is None else after + 1
    missing = [path for path in index.outside if not Path(path).exists()]
    return Restored(index.run, version, root, missing)


def _copy_all(index: Index, backup: Path, draft: Path) -> None:
    """Copy every file, and see that each is as it was."""
    for name, facts in index.files.items():
        source, target = backup / name, draft / name
        if not source.is_file():
            raise ConfigError(f"{backup} is damaged: {name} is missing.", fix="Take another one.")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        shutil.copymode(source, target)
        if target.stat().st_size != facts.bytes or digest_of(target) != facts.blake3:
            raise ConfigError(
                f"{backup} is damaged: {name} is not as it was backed up.", fix="Take another one."
            )


def _move_paths(folder: RunFolder, index: Index, root: Path) -> None:
    """Paths of run.toml that lie in the run's folder lie in the new one now; nothing else of the
    file changes, the operator's comments neither."""
    text = folder.config.read_text(encoding="utf-8")
    old, new = (json.dumps(f"{place}/", ensure_ascii=False)[1:-1] for place in (index.root, root))
    for before in ('"', '"file:', '"dataset:'):
        text = text.replace(f"{before}{old}", f"{before}{new}")
    folder.config.write_text(text, encoding="utf-8")


def _check_whole(folder: RunFolder, index: Index) -> None:
    config = load_config(folder.config)
    with suppress(FileNotFoundError):
        folder.ledger.chmod(0o600)
    try:
        peer_id = Identity.load(folder.identity).peer_id
    except IdentityError as error:
        raise ConfigError(f"the backup's key cannot be used: {error.message}") from error
    if (config.run.id, peer_id) != (index.run, index.peer_id):
        raise ConfigError(
            f"the backup says that it is of {index.run} by {index.peer_id}, and holds "
            f"{config.run.id} by {peer_id}.",
            fix="Take another one.",
        )
    if index.version is not None and not is_whole(folder.checkpoint(index.version)):
        raise ConfigError(f"the backup has no checkpoint of its version {index.version}.")


async def _follow(folder: RunFolder, index: Index, after: int) -> None:
    """Make the backup's version follow the version `after`: a return like the guard's."""
    assert index.version is not None
    version = after + 1
    renumber(folder.checkpoint(index.version), folder.checkpoint(version), version)
    async with Ledger.open(folder.ledger, index.run, clock=time.time) as ledger:
        await ledger.commit_update(version, [], {ROLLED_BACK_TO: float(index.version)})
        await ledger.record_event("restored", version=version, to=index.version)
