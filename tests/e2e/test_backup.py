"""A run is backed up while it is served, its machine is lost, and it goes on from the backup."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from programs import Stage, named


def command(*arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "echo_hub.cli", *arguments, "--json"],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


@pytest.mark.slow
def test_a_run_goes_on_from_its_backup_with_the_same_nodes(stage: Stage, port: int) -> None:
    stage.init(
        port,
        run={"id": "e2e"},
        learner={"groups_per_update": 4, "threads": 1},
        lease={"seconds": 20},
        evaluation={"prompts": 0},
        network={"directory": False},
    )
    hub, node = stage.hub(), stage.node(0)
    serving = hub.wait_for(named("serving"))
    hub.wait_for(named("update", version=3))
    made = command("backup", str(stage.run), str(stage.root / "copy"))
    assert made["version"] >= 3
    hub.wait_for(named("update", version=made["version"] + 2))
    hub.kill()
    lost = max(event["version"] for event in hub.named("update")) + 1  # it may be out already

    home = stage.run
    shutil.move(home, stage.root / "lost")
    done = command("restore", made["out"], str(home), "--after", str(lost))
    assert done["version"] == lost + 1
    again = stage.hub()
    event = again.wait_for(named("serving"))
    assert (event["peer_id"], event["version"]) == (serving["peer_id"], lost + 1)
    update = again.wait_for(named("update", version=lost + 2))
    assert update["lag_max"] <= 2
    assert node.named("joined")[-1]["hub"] == serving["peer_id"]
    trained = stage.ledger().execute(
        "SELECT count(*), min(version) FROM groups WHERE update_no = ?", (lost + 2,)
    )
    count, oldest = trained.fetchone()
    assert count == 4
    assert oldest >= lost + 1 or oldest <= made["version"]  # nothing of what was lost
    assert Path(made["out"]).is_dir()
