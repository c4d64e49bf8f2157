"""Where a run keeps its things: one folder, made by `echo-hub init`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class RunFolder:
    """The files of one run under `root`."""

    root: Path

    @property
    def config(self) -> Path:
        return self.root / "run.toml"

    @property
    def identity(self) -> Path:
        return self.root / "identity.pem"

    @property
    def bootstrap(self) -> Path:
        return self.root / "bootstrap_peers.toml"

    @property
    def directory_key(self) -> Path:
        return self.root / "directory.key"

    @property
    def smollm2(self) -> Path:
        """The base model, if `init` converted it."""
        return self.root / "smollm2"

    @property
    def small_base(self) -> Path:
        """The base that `init` made for a built-in task."""
        return self.root / "base"

    @property
    def ledger(self) -> Path:
        return self.root / "ledger.sqlite"

    @property
    def calibration(self) -> Path:
        """What `echo-hub calibrate` measured."""
        return self.root / "audit.json"

    @property
    def trackers(self) -> Path:
        """A folder for each experiment tracker."""
        return self.root / "trackers"

    @property
    def store(self) -> Path:
        return self.root / "store"

    @property
    def deltas(self) -> Path:
        """Deltas that are announced now; of no use after a restart."""
        return self.root / "deltas"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    def checkpoint(self, version: int) -> Path:
        """Folder of the learner's checkpoint at a version."""
        return self.checkpoints / f"v{version:06d}"

    def kept(self) -> set[int]:
        """Versions that have a checkpoint folder."""
        return {int(folder.name[1:]) for folder in self.checkpoints.glob("v[0-9]*")}

    def adapter(self, version: int) -> Path:
        """PEFT adapter folder of a version."""
        return self.checkpoint(version) / "adapter"
