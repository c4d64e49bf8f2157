"""An exported version as it arrives from a hub, until it is a folder of its own.

Promises: the folder appears whole or not at all; nothing is written outside of it, whatever the
archive names; what arrived by then is gone after an error.
"""

from __future__ import annotations

import tempfile
import zipfile
from pathlib import Path

from echo_hub.api import models
from echo_hub.folders import whole_folder
from echo_p2p.errors import ConfigError, NetError

PIECE = 1 << 20
EXPORT_S = 3600.0
"""A merged model of a large base takes its time before its first byte comes."""
_FIX = "Name a folder that does not exist yet, where you may write."


def newest_kept(page: models.VersionPage) -> int:
    """The newest version whose checkpoint the run keeps; ConfigError if there is none."""
    kept = [one.version for one in page.versions if one.kept]
    if not kept:
        raise ConfigError(
            "the run keeps no version.", fix="The first one is made when the run is served."
        )
    return max(kept)


def asked(version: int, merge: bool) -> tuple[str, dict[str, str]]:
    """Path and query of an export."""
    return f"/versions/{version}/export", {"form": "merged" if merge else "adapter"}


class Arriving:
    """What arrives for the new or empty folder `out`; close it. ConfigError if it has any."""

    def __init__(self, out: str | Path) -> None:
        self._out = Path(out).absolute()
        if self._out.exists() and (not self._out.is_dir() or any(self._out.iterdir())):
            raise ConfigError(f"{self._out} is there already.", fix=_FIX)
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close

    def write(self, piece: bytes) -> None:
        """The next piece of the archive."""
        self._file.write(piece)

    def unpack(self) -> Path:
        """The folder, once all is here."""
        try:
            with (
                zipfile.ZipFile(self._file) as archive,
                whole_folder(self._out, replace=False) as draft,
            ):
                for one in archive.infolist():
                    if not one.is_dir():
                        with archive.open(one) as source, (draft / _name(one)).open("wb") as sink:
                            while piece := source.read(PIECE):
                                sink.write(piece)
        except zipfile.BadZipFile as error:
            raise NetError(
                f"what the hub sent is no archive: {error}.", fix="Ask it once more."
            ) from error
        except OSError as error:
            raise ConfigError(
                f"cannot write {self._out}: {(error.strerror or str(error)).lower()}.", fix=_FIX
            ) from error
        return self._out

    def close(self) -> None:
        """What arrived is not needed any more."""
        self._file.close()


def _name(member: zipfile.ZipInfo) -> str:
    """The name of a file in the folder: an export has one folder, and no more within it."""
    name = member.filename.rpartition("/")[2]
    if name in ("", ".", "..") or "\\" in name or "\0" in name:
        raise zipfile.BadZipFile(f"it names {member.filename!r}")
    return name
