"""`echo-hub nodes`: who gives what, and why it is rejected; what a shell offers to complete."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio
from test_trace import DROPPED, NODE, SPOILED, fill
from typer.testing import CliRunner

from echo_hub.cli import app
from echo_hub.commands.one_node import node_in_full
from echo_hub.commands.presets import preset
from echo_hub.commands.template import render_config
from echo_hub.ledger.ledger import Ledger
from echo_hub.paths import RunFolder
from echo_p2p.errors import IdentityError
from echo_p2p.identity import Identity, peer_id_of

PEER_ID = peer_id_of(NODE.public_key)
OTHER = Identity.from_seed(b"o" * 32).public_key


async def reject(folder: RunFolder) -> None:
    async with Ledger.open(folder.ledger, "run") as ledger:
        await ledger.count_rejected(NODE.public_key, "audit_margin", 8)
        await ledger.count_rejected(OTHER, "stale", 4)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = RunFolder(tmp_path_factory.mktemp("run"))
    folder.config.write_text(render_config(preset("addmix3", run_id="run", overrides={})))
    trio.run(fill, folder)
    trio.run(reject, folder)
    for version in (3, 12, 14):
        folder.adapter(version).mkdir(parents=True)
    return folder.root


def said(*arguments: str) -> str:
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_list_tells_reasons(run: Path) -> None:
    found: list[dict[str, Any]] = json.loads(said("nodes", str(run), "--json"))
    by_id = {one["node"]: one for one in found}
    assert by_id[peer_id_of(OTHER)]["reasons"] == {"stale": 4}
    assert by_id[PEER_ID]["reasons"]["audit_margin"] == 8
    assert by_id[PEER_ID]["rejected"] == sum(by_id[PEER_ID]["reasons"].values())
    assert "audit_margin" in said("nodes", str(run))


def test_one_node_in_full(run: Path) -> None:
    node = node_in_full(run, PEER_ID)
    assert node["banned"] == "a lie"
    codes = {one["trace"]: one["code"] for one in node["refused"]}
    assert codes[DROPPED] == "stale"  # later
    assert codes[SPOILED] == "bad_tokens"  # at the door
    shown = said("nodes", str(run), PEER_ID)
    assert "audit_margin: A token is not the one that the claimed policy samples" in shown
    assert shown.count("No honest node is rejected for this.") == 1
    assert DROPPED in shown
    with pytest.raises(IdentityError, match="knows no node"):
        node_in_full(run, peer_id_of(Identity.from_seed(b"n" * 32).public_key))
    with pytest.raises(IdentityError):
        node_in_full(run, "../evil")


def offered(line: str) -> str:
    """What a zsh is offered for the last word of a line."""
    environment = {"_ECHO_HUB_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": line}
    return CliRunner().invoke(app, [], env=environment, prog_name="echo-hub").output


def test_a_shell_completes_peer_ids_and_versions(run: Path, tmp_path: Path) -> None:
    assert PEER_ID in offered(f"echo-hub ban {run} {PEER_ID[:6]}")
    assert peer_id_of(OTHER) not in offered(f"echo-hub ban {run} {PEER_ID}")
    assert "banned" in offered(f"echo-hub nodes {run} {PEER_ID[:6]}")
    versions = offered(f"echo-hub rollback {run} 1")
    assert "12" in versions
    assert "14" in versions
    assert '"3"' not in versions
    assert "14" in offered(f"echo-hub export {run} out --version 1")
    assert PEER_ID not in offered(f"echo-hub ban {tmp_path} 1")  # no run, no offer, no complaint
