"""A run of two tasks, one of which nobody can solve, through a kill of its hub."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

import pytest
from programs import Stage, named
from test_late_joiner import status

from echo_hub.commands.template import render_config
from echo_hub.config import RunConfig, load_config
from echo_hub.tasks.mixture import MOST_ARMS


def impossible(path: Path) -> str:
    """Sums that no answer is right for."""
    rng = random.Random(0)
    sums = {f"{rng.randrange(100, 1000)}+{rng.randrange(100, 1000)}=" for _ in range(400)}
    rows = [json.dumps({"sum": one, "right": "x"}) for one in sorted(sums)]
    path.write_text("\n".join(rows), encoding="utf-8")
    return f"dataset:{path}"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_what_nobody_solves_is_drawn_less_and_a_kill_changes_nothing(
    stage: Stage, port: int
) -> None:
    stage.init(
        port,
        run={"updates": 8},
        network={"directory": False},
        learner={"groups_per_update": 16},
        sampling={"group_size": 4},
        evaluation={"prompts": 20, "every": 3},
    )
    path = stage.run / "run.toml"
    values = load_config(path).model_dump(mode="json")
    del values["task"]
    never = {
        "name": impossible(stage.root / "never.jsonl"),
        "label": "never",
        "options": {"prompt": "{sum}", "answer": "right"},
    }
    values["tasks"] = [{"name": "addmix3", "label": "sums"}, never]
    values["curriculum"] = {"window": 4, "outside": 0.02}
    path.write_text(render_config(RunConfig.model_validate(values)), encoding="utf-8")

    hub, _ = stage.hub(), stage.node(0)
    hub.wait_for(named("update", version=3))
    hub.kill()
    hub = stage.hub()
    hub.wait_for(named("update", version=8))
    assert hub.wait() == 0

    with stage.ledger() as ledger:
        query = "SELECT prompt_index FROM leases WHERE split = 'train' ORDER BY issued_at"
        numbers = [row[0] for row in ledger.execute(query)]
    first, last = (Counter(n % MOST_ARMS for n in some) for some in (numbers[:16], numbers[-48:]))
    assert first[1] >= 4
    assert last[1] <= 5
    updates = hub.named("update")
    assert any("groups" in update["tasks"]["sums"] for update in updates)
    nobody = [update["tasks"]["never"] for update in updates]
    scored = [one for one in nobody if "groups" in one]
    assert all(one["pass_rate"] == 0 and one["zero_advantage"] == 1 for one in scored)
    assert nobody[-1]["outside"] == 1
    facts = status(stage)
    newest = facts["evaluations"][-1]
    assert newest["version"] == 8
    assert {name: one["prompts"] for name, one in newest["tasks"].items()} == {
        "sums": 10,
        "never": 10,
    }
    assert newest["tasks"]["never"]["reward"] == 0
    assert newest["low"] <= newest["reward"] <= newest["high"]
    assert any(one["version"] in (3, 4, 6, 7) for one in facts["evaluations"])
    assert "sums" in facts["tasks"]
