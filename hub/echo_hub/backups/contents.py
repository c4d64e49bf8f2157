"""What a backup holds: `backup.json`, and which of a run's files belong to it.

A backup is a folder. It holds the files of the run's folder under their own names, without what the
hub makes again (`store/`, `deltas/`), and `backup.json`, which names each with its size and BLAKE3
digest. Files that run.toml names inside the run's folder (a base, a task of the operator's) belong
to it; what lies outside does not, and is listed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from echo_hub.config import RunConfig
from echo_hub.paths import RunFolder
from echo_p2p.errors import ConfigError

FORMAT = 1
INDEX = "backup.json"
_FAMILIES = ("file:", "dataset:")


class FileFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file: its size in bytes, its BLAKE3 digest in hexadecimal."""

    bytes: int
    blake3: str


class Index(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`backup.json`. `version` is None if the run had none yet; `root` the folder it was made of;
    `outside` are paths that run.toml names and that are not in the backup."""

    format: int
    program: str
    run: str
    peer_id: str
    version: int | None
    made_at: float
    root: str
    outside: list[str]
    files: dict[str, FileFacts]


def read_index(backup: Path) -> Index:
    """The index of a backup; ConfigError if the folder is none."""
    try:
        index = msgspec.json.decode((backup / INDEX).read_bytes(), type=Index)
    except OSError as error:
        raise ConfigError(
            f"{backup} is no backup: {INDEX}: {(error.strerror or str(error)).lower()}.",
            fix="Name a folder that `echo-hub backup` made.",
        ) from error
    except msgspec.DecodeError as error:
        raise ConfigError(f"{backup / INDEX} is damaged: {error}.") from error
    if index.format != FORMAT:
        raise ConfigError(
            f"{backup} has format {index.format}; this program knows {FORMAT}.",
            fix="Restore it with the version of echo-p2p that made it.",
        )
    for name in index.files:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not path.parts or "\\" in name:
            raise ConfigError(f"{backup / INDEX} is damaged: it names the file {name!r}.")
    return index


def single_files(folder: RunFolder) -> list[Path]:
    """The files of a run that do not change while it is served, or appear whole."""
    wanted = (
        folder.config,
        folder.identity,
        folder.directory_key,
        folder.bootstrap,
        folder.calibration,
    )
    return [path for path in wanted if path.is_file()]


def named_paths(config: RunConfig) -> list[Path]:
    """Absolute paths of files and folders that a run.toml names, in order, each once."""
    found = dict.fromkeys(_paths_in(config.model_dump(mode="json")))
    return list(found)


def _paths_in(value: Any) -> Iterator[Path]:
    if isinstance(value, dict):
        for item in value.values():
            yield from _paths_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _paths_in(item)
    elif isinstance(value, str):
        text = value
        for family in _FAMILIES:
            text = text.removeprefix(family)
        if text != value:
            text = text.partition(".py:")[0] + (".py" if ".py:" in text else "")
        if text.startswith(("/", "~/")):
            path = Path(text).expanduser()
            if path.exists():  # a listen address begins with a slash too
                yield path


def files_below(path: Path) -> Iterator[Path]:
    """A file itself, or every file in a folder."""
    if path.is_file():
        yield path
        return
    for file in sorted(path.rglob("*")):
        if file.is_file() and "__pycache__" not in file.parts:
            yield file
