"""A node that joins in the middle of a run, and what the hub says of it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from programs import Stage, named


def status(stage: Stage) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "echo_hub.cli", "status", str(stage.run), "--json"],
        capture_output=True,
        check=True,
        text=True,
    )
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_late_joiner_gets_base_and_version_mostly_from_nodes(stage: Stage, port: int) -> None:
    stage.init(
        port,
        run={"updates": 0},
        network={"directory": False},
        learner={"groups_per_update": 8},
        sampling={"group_size": 4},
        evaluation={"prompts": 0},
        publish={"chunk_bytes": 65536},
    )
    hub = stage.hub()
    hub.wait_for(named("serving"))
    early = [stage.node(number) for number in range(2)]
    for node in early:
        node.wait_for(named("version"))
    told = hub.wait_for(
        lambda event: event["event"] == "disseminated" and event["nodes_reached"] == 2
    )
    assert told["nodes_in_session"] == 2
    assert told["hub_bytes"] < 1.5 * told["size"]
    late = stage.node(2)
    progress = late.wait_for(
        lambda event: event["event"] == "progress" and event["version"] is not None
    )
    assert progress["version"] >= told["version"]
    assert progress["bytes_from_peers"] > 2 * progress["bytes_from_hub"]
    (base,) = [
        event
        for event in late.named("fetched")
        if event["what"] == "the base model" and event["done_bytes"] == event["total_bytes"]
    ]
    assert base["from_peers_bytes"] > 2 * base["from_hub_bytes"]
    late.stop()
    spread = status(stage)["dissemination"]
    assert spread["base"]["nodes"] == 3
    assert spread["base"]["hub_bytes"] < 1.5 * spread["base"]["size"]
    assert spread["versions_everywhere"] >= 1
    assert spread["peer_share"] > 0.4
