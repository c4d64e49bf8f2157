"""What the store knows about one artifact, and which ones make room for another."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from echo_p2p.artifact import bitmap
from echo_p2p.artifact.disk import ENVELOPE, FILES
from echo_p2p.artifact.manifest import Artifact
from echo_p2p.errors import DiskFullError, EchoError


class Entry:
    """One artifact in the store. `have` is what is known to be good on disk."""

    def __init__(self, artifact: Artifact, folder: Path, *, complete: bool) -> None:
        self.artifact = artifact
        self.folder = folder
        self.complete = complete
        self.have = bitmap.full(artifact.layout.count) if complete else 0
        self.uses = 0  # pins, reads, and the fetch in progress
        self.fetching = False
        self.removed = False  # forgotten, and deleted as soon as nobody uses it
        self.last_used = 0

    @property
    def files(self) -> Path:
        return self.folder / FILES

    @property
    def size(self) -> int:
        """Bytes it counts for, whole or not."""
        return self.artifact.layout.total_bytes


def load_entry(folder: Path, *, complete: bool) -> Entry | None:
    """The entry in a folder of ours; None if it cannot be made out what it holds."""
    try:
        artifact = Artifact.open((folder / ENVELOPE).read_bytes(), None)
    except (OSError, EchoError):
        return None
    return Entry(artifact, folder, complete=complete) if artifact.id.hex() == folder.name else None


def choose_excess(entries: Collection[Entry], cap_bytes: int) -> list[Entry]:
    """The least recently used of those not in use that must go for the others to fit a cap.

    Fewer than it takes, if too much is in use.
    """
    excess = sum(entry.size for entry in entries) - cap_bytes
    victims = []
    for entry in sorted(entries, key=lambda entry: entry.last_used):
        if excess <= 0:
            break
        if not entry.uses:
            victims.append(entry)
            excess -= entry.size
    return victims


def choose_victims(entries: Collection[Entry], artifact: Artifact, cap_bytes: int) -> list[Entry]:
    """The least recently used of those not in use, as many as must go for `artifact` to fit."""
    need = artifact.layout.total_bytes
    victims = choose_excess(entries, cap_bytes - need)
    left = sum(entry.size for entry in entries) - sum(entry.size for entry in victims)
    if left + need > cap_bytes:
        in_use = sum(entry.size for entry in entries if entry.uses)
        raise DiskFullError(
            f"no room for the {need} bytes of {artifact}: the store may hold {cap_bytes}, "
            f"and {in_use} of them are in use.",
            fix="Allow it more disk space.",
        )
    return victims
