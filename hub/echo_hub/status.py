"""`echo-hub status`: a run's facts, read from its ledger without disturbing the hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from echo_hub.config import load_config
from echo_hub.paths import RunFolder
from echo_p2p.errors import ConfigError


def run_folder(root: Path) -> RunFolder:
    """The run in a folder, or in the folder of a run.toml; ConfigError if there is none."""
    folder = RunFolder((root if root.is_dir() else root.parent).absolute())
    if not folder.config.is_file():
        raise ConfigError(
            f"{folder.root} holds no run.toml.", fix="Make a run with: echo-hub init FOLDER"
        )
    return folder


def read_status(root: Path) -> dict[str, Any]:
    """Facts of the run in a folder (or of the folder of a run.toml), as plain JSON values."""
    from echo_hub.ledger import read_facts

    folder = run_folder(root)
    config = load_config(folder.config)
    facts: dict[str, Any] = {"run": config.run.id, "task": config.task.name}
    return facts | read_facts(folder.ledger)


def render_status(facts: dict[str, Any]) -> None:
    """Print the facts as a table."""
    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=False, box=None)
    for key, value in facts.items():
        if isinstance(value, dict):
            value = ", ".join(f"{name} {count}" for name, count in value.items()) or "-"
        table.add_row(key.replace("_", " "), str(value) if value is not None else "-")
    Console().print(table)
