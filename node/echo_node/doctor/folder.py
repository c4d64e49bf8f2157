"""The data folder: a folder, writable, and not in use by another node."""

from __future__ import annotations

import fcntl
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from echo_node.doctor.findings import Finding
from echo_node.doctor.situation import Check, Situation

NAME = "folder"


@dataclass(frozen=True)
class Facts:
    """`error`: why nothing can be written. `holder`: the process that uses the store, or ""."""

    root: Path
    error: str = ""
    holder: str = ""


def gather(root: Path, store: Path) -> Facts:
    """Try to write a file, in the folder or where it would be made; nothing of it stays."""
    place = root
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        with tempfile.NamedTemporaryFile(dir=place, prefix=".doctor."):
            pass
    except OSError as error:
        return Facts(root, error=error.strerror or str(error))
    return Facts(root, holder=_holder(store / "lock"))


def _holder(lock: Path) -> str:
    try:
        descriptor = os.open(lock, os.O_RDONLY)
    except OSError:
        return ""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
    except OSError:
        return ""
    finally:
        os.close(descriptor)
    return ""


def judge(facts: Facts) -> list[Finding]:
    if facts.error:
        return [
            Finding(
                check=NAME,
                severity="error",
                said=f"nothing can be written to {facts.root}: {facts.error}.",
                fix="Make it yours, or name another folder with --data-dir.",
            )
        ]
    if facts.holder:
        said = f"a node is running with {facts.root}: process {facts.holder}."
        return [Finding(check=NAME, severity="note", said=said)]
    return [Finding(check=NAME, severity="ok", said=f"{facts.root} can be written.")]


async def _run(situation: Situation) -> list[Finding]:
    folder = situation.question.folder
    return judge(gather(folder.root, folder.store))


CHECK = Check(NAME, "Data folder", _run)
