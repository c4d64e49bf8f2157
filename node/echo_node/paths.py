"""Where a node keeps things: `ECHO_NODE_HOME`, or the platform's user data folder."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from echo_p2p.errors import FolderError

HOME_VARIABLE = "ECHO_NODE_HOME"


@dataclass(frozen=True)
class NodeFolder:
    """A node's data folder."""

    root: Path

    @property
    def identity(self) -> Path:
        return self.root / "identity.pem"

    @property
    def person(self) -> Path:
        return self.root / "person.pem"

    @property
    def voucher(self) -> Path:
        return self.root / "voucher"

    @property
    def exported(self) -> Path:
        """There once the identity was exported."""
        return self.root / "identity.exported"

    @property
    def credits(self) -> Path:
        return self.root / "credit"

    @property
    def store(self) -> Path:
        return self.root / "store"

    @property
    def updates(self) -> Path:
        """Where a release lies until it is installed."""
        return self.root / "updates"

    @property
    def lock(self) -> Path:
        """Held by the node that runs here; says where it listens."""
        return self.root / "node.lock"

    @property
    def data_count(self) -> Path:
        return self.root / "data.json"

    @property
    def speeds(self) -> Path:
        """What `echo-node bench` has measured."""
        return self.root / "speeds.json"

    @property
    def engine_log(self) -> Path:
        return self.root / "logs" / "engine.log"


def config_file(chosen: Path | None = None) -> Path:
    """`node.toml`: the one that was chosen, else that in the platform's configuration folder."""
    if chosen is not None:
        return chosen.expanduser().absolute()
    import platformdirs

    return Path(platformdirs.user_config_dir("echo-p2p", appauthor=False)) / "node.toml"


def node_folder(chosen: Path | None = None) -> NodeFolder:
    """The folder that was chosen, else the variable's, else the platform's; made on first use."""
    if chosen is None and os.environ.get(HOME_VARIABLE):
        chosen = Path(os.environ[HOME_VARIABLE])
    if chosen is None:
        import platformdirs

        chosen = Path(platformdirs.user_data_dir("echo-p2p", appauthor=False))
    root = chosen.expanduser().absolute()
    if root.exists() and not root.is_dir():
        raise FolderError(f"{root} is not a folder.", fix="Name another one with --data-dir.")
    return NodeFolder(root)
