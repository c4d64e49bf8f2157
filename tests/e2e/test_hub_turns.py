"""A task of the operator's own that takes part in the dialogue, with a real hub and a real node.

The node hands in each turn, hears what follows, and goes on with what its engine has kept.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from programs import Stage

from echo_p2p.envelope import open_envelope
from echo_p2p.wire import Submission

TASK = '''
"""Three sums, one after the other; the tool that gives the next one is the hub's alone."""
import random
from pathlib import Path

from echo_hub.tasks import Prompt, Turns, draw

CALLS = Path(__file__).with_name("calls")


def sums(*seed):
    chance = random.Random("/".join(map(str, seed)))
    return [(chance.randrange(100, 1000), chance.randrange(100, 1000)) for _ in range(3)]


def prompt(split, index):
    def one(attempt):
        asked = sums(split, index, attempt)
        return f"{asked[0][0]}+{asked[0][1]}=", asked

    text, asked = draw(split, one)
    return Prompt(text, {"sums": asked}, Turns(max_turns=3))


def reply(prompt, answers):
    with CALLS.open("a") as file:
        print(prompt.text, len(answers), file=file)
    a, b = prompt.data["sums"][len(answers)]
    return f"{a}+{b}="


def reward(prompt, transcript):
    assert list(transcript.observations) == [
        f"{a}+{b}=" for a, b in prompt.data["sums"][1 : len(transcript.answers)]
    ]
    right = sum(
        answer.rpartition(">")[2] == str(a + b)
        for answer, (a, b) in zip(transcript.answers, prompt.data["sums"])
    )
    return right / 3
'''


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_dialogue_with_the_hub(stage: Stage, port: int, tmp_path: Path) -> None:
    (tmp_path / "sums.py").write_text(TASK)
    stage.init(
        port,
        run={"updates": 2},
        network={"directory": False},
        task={"name": f"file:{tmp_path}/sums.py"},
        sampling={"group_size": 4, "max_new_tokens": 120, "turn_tokens": 40},
        learner={"groups_per_update": 4},
        evaluation={"prompts": 4},
    )
    hub, node = stage.hub(), stage.node(0)
    assert node.wait() == 0
    assert hub.wait() == 0
    with stage.ledger() as ledger:
        told = dict(ledger.execute("SELECT code, sum(rollouts) FROM verdicts GROUP BY code"))
        groups = ledger.execute(
            "SELECT envelope, rewards FROM groups WHERE state = 'consumed' AND split = 'train'"
        ).fetchall()
        events = ledger.execute("SELECT kind, detail FROM events").fetchall()
        left = ledger.execute("SELECT count(*) FROM dialogues").fetchone()[0]
    assert set(told) <= {"accepted", "stale"}, events
    assert len(groups) == 8
    turns = [len(one["observed"]) for envelope, _ in groups for one in rollouts_of(envelope)]
    assert max(turns) == 2
    assert sum(turns) > len(turns)
    assert all(0 <= reward <= 1 for _, rewards in groups for reward in json.loads(rewards))
    asked = (tmp_path / "calls").read_text().splitlines()
    assert len(asked) >= sum(turns)
    # what is still kept belongs to leases that the end of the run left open
    assert left <= 4


def rollouts_of(envelope: bytes) -> list[dict[str, Any]]:
    return [
        {"observed": one.observed} for one in open_envelope(envelope, Submission).message.rollouts
    ]
