"""The upgrade command is the one of the installer that was used."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from echo_p2p.upgrade import upgrade_command


@pytest.mark.parametrize(
    ("file", "content", "command"),
    [
        ("pipx_metadata.json", "{}", "pipx upgrade echo-p2p"),
        ("uv-receipt.toml", "", "uv tool upgrade echo-p2p"),
    ],
)
def test_tools_of_their_own(tmp_path: Path, file: str, content: str, command: str) -> None:
    (tmp_path / file).write_text(content)
    assert upgrade_command(tmp_path) == command


def test_environments_keep_their_extras(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("echo_p2p.upgrade.editable_source", lambda: "")
    (tmp_path / "pyvenv.cfg").write_text("home = /usr/bin\n")
    command = upgrade_command(tmp_path, extras="cuda")
    assert command == f'{tmp_path}/bin/python -m pip install --upgrade "echo-p2p[cuda]"'
    (tmp_path / "pyvenv.cfg").write_text("home = /usr/bin\nuv = 0.9.1\n")
    command = upgrade_command(tmp_path)
    assert command == f"uv pip install --python {tmp_path} --upgrade echo-p2p"
    assert upgrade_command(Path(sys.base_prefix)) == "python3 -m pip install --upgrade echo-p2p"


def test_a_source_tree_is_pulled(tmp_path: Path) -> None:
    assert upgrade_command(tmp_path, source="/src/echo").startswith("git -C /src/echo pull && ")
