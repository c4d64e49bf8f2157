"""An operator bans a node while the hub serves, with the commands an operator uses."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from programs import Stage


def echo_hub(*arguments: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "echo_hub.cli", *arguments, "--json"],
        check=True, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    return json.loads(done.stdout)


def the_node(stage: Stage, peer_id: str) -> dict[str, Any]:
    (found,) = [one for one in echo_hub("nodes", str(stage.run)) if one["node"] == peer_id]
    return dict(found)


@pytest.mark.timeout(400)
def test_a_banned_node_ends_and_may_come_back_once_it_is_unbanned(stage: Stage, port: int) -> None:
    stage.init(
        port,
        learner={"groups_per_update": 8},
        sampling={"group_size": 4},
        evaluation={"prompts": 0},
        network={"directory": False},
    )
    hub, first = stage.hub(), stage.node(0)
    peer_id = first.wait_for(lambda event: event["event"] == "joined")["node"]
    hub.wait_for(lambda event: event["event"] == "update")
    assert echo_hub("ban", str(stage.run), peer_id, "--why", "a test.") == {"banned": peer_id}
    assert first.wait() == 13
    facts = the_node(stage, peer_id)
    assert facts["banned"] == "a test."
    assert facts["trained_groups"] > 0
    assert echo_hub("status", str(stage.run))["nodes_banned"] == 1
    assert stage.node(0).wait() == 13  # refused at the door

    assert echo_hub("unban", str(stage.run), peer_id) == {"unbanned": peer_id}
    version = hub.named("update")[-1]["version"]
    stage.node(0)
    hub.wait_for(lambda event: event["event"] == "update" and event["version"] > version + 2)
    hub.stop()
    assert echo_hub("ban", str(stage.run), peer_id) == {"banned": peer_id}  # without a hub
    assert the_node(stage, peer_id)["banned"]
