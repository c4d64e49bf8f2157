"""What is the volunteer's own, by the commands: keys, credit, a service, and an end of it all."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from echo_node.commands.purge import OURS
from echo_node.control.lock import running_here
from echo_node.paths import NodeFolder
from echo_p2p.errors import AlreadyRunningError
from echo_p2p.identity import Identity

PASSPHRASE = "correct horse battery"


def run(*arguments: str, home: Path, code: int = 0, answer: str = "") -> str:
    """What `echo-node` printed."""
    done = subprocess.run(
        [sys.executable, "-m", "echo_node.cli", *arguments],
        capture_output=True,
        text=True,
        input=answer,
        timeout=60,
        env={
            **os.environ,
            "ECHO_NODE_HOME": str(home),
            "ECHO_NODE_PASSPHRASE": PASSPHRASE,
            "XDG_CONFIG_HOME": str(home.parent / "config"),
            "NO_COLOR": "1",
        },
    )
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def test_a_person_takes_their_key_to_a_second_machine(tmp_path: Path) -> None:
    home, laptop, key = tmp_path / "home", tmp_path / "laptop", tmp_path / "ada.key"
    first = json.loads(run("identity", "person", "--name", "Ada", "--json", home=home))
    assert first["node"] == Identity.load(NodeFolder(home).identity).peer_id
    assert first["person"] in run("identity", "export", "--person", str(key), home=home)
    assert PASSPHRASE not in key.read_text()
    assert first["person"] in run("identity", "import", str(key), home=laptop)
    run("identity", "person", "--name", "Ada", home=laptop)
    shown = run("identity", home=laptop)
    assert first["person"] in shown
    assert first["node"] not in shown
    assert "exists already" in run("identity", "export", str(key), home=home, code=3)


def test_a_statement_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("I gave a million tokens, believe me.")
    said = run("credit", "verify", str(tmp_path / "letter.txt"), home=tmp_path, code=2)
    assert "holds no statement of credit" in said
    assert "No statement yet" in run("credit", home=tmp_path / "none")


def test_a_purge_shows_asks_and_touches_nothing_else(tmp_path: Path) -> None:
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    run("identity", "person", home=home)
    (home / "store" / "deep").mkdir(parents=True)
    (home / "store" / "deep" / "chunk").write_bytes(bytes(2_000_000))
    elsewhere.mkdir()
    (elsewhere / "precious").touch()
    (home / "store" / "link").symlink_to(elsewhere)
    (home / "thesis.txt").touch()
    asked = run("purge", home=home, code=1, answer="n\n")
    assert "2.0 MB in 2 files" in asked
    assert (home / "store").exists()
    run("purge", "--keep-keys", "--yes", home=home)
    assert sorted(path.name for path in home.iterdir()) == [
        "identity.pem", "person.pem", "thesis.txt", "voucher",
    ]  # fmt: skip
    assert "standing and credit" not in run("purge", "--keep-keys", "--yes", home=home)
    run("purge", "--yes", home=home)
    assert [path.name for path in home.iterdir()] == ["thesis.txt"]
    assert (elsewhere / "precious").exists()
    assert "nothing of this program" in run("purge", "--yes", home=home)


def test_a_running_node_is_not_pulled_out_from_under_itself(tmp_path: Path) -> None:
    home = NodeFolder(tmp_path / "home")
    run("identity", home=home.root)
    with running_here(home):
        said = run("purge", home=home.root, code=AlreadyRunningError.exit_code)
    assert "Delete it?" not in said
    assert f"process {os.getpid()}" in said
    assert home.identity.exists()


def test_a_purge_knows_all_that_a_node_keeps(tmp_path: Path) -> None:
    folder = NodeFolder(tmp_path)
    kept = {
        getattr(folder, name).relative_to(tmp_path).parts[0]
        for name, kind in vars(NodeFolder).items()
        if isinstance(kind, property)
    }
    assert kept <= set(OURS)


@pytest.mark.skipif(not shutil.which("systemctl"), reason="systemd is not installed")
def test_a_service_where_no_manager_answers(tmp_path: Path) -> None:
    said = run("service", "install", "--", "--threads", "1", home=tmp_path / "home", code=8)
    assert "failed" in said or "did not answer" in said
