"""`state.json` of a checkpoint folder (see `checkpoint`), for those who need no torch."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec

from echo_hub.folders import whole_folder
from echo_p2p.errors import LearnerError

FORMAT = 1
META = "state.json"


class Meta(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The version, facts by their owner's name, the SHA-256 of every other file by its path."""

    format: int
    version: int
    facts: dict[str, Any]
    sha256: dict[str, str]


def is_whole(checkpoint: Path) -> bool:
    """Are all files of a checkpoint folder there? One that is being deleted has only some."""
    try:
        meta = msgspec.json.decode((checkpoint / META).read_bytes(), type=Meta)
    except (OSError, msgspec.DecodeError):
        return False
    return all((checkpoint / name).is_file() for name in meta.sha256)


def renumber(checkpoint: Path, out: Path, version: int) -> None:
    """Write the state of a checkpoint folder as that of another version, made of no groups."""
    try:
        with whole_folder(out) as draft:
            shutil.copytree(checkpoint, draft, dirs_exist_ok=True)
            meta = msgspec.json.decode((draft / META).read_bytes(), type=Meta)
            changed = Meta(meta.format, version, {**meta.facts, "batch": []}, meta.sha256)
            (draft / META).write_bytes(msgspec.json.format(msgspec.json.encode(changed)))
    except (OSError, msgspec.DecodeError) as error:
        raise LearnerError(f"cannot write the checkpoint {out}: {error}.") from error
