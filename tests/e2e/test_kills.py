"""A run of real processes, some of which are killed: nothing acknowledged is lost or counted twice.

The evidence is the ledger, and what the nodes themselves counted from the receipts they hold.
"""

from __future__ import annotations

import random
import signal
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from programs import Event, Program, Stage, named

from echo_hub.models import addmix3_path
from echo_p2p.identity import public_key_of

B = 8
STALENESS = 2
SMALL = {
    "learner": {"groups_per_update": B},
    "sampling": {"group_size": 4},
    "evaluation": {"prompts": 0},
    "lease": {"seconds": 12, "groups_per_request": 4},
}


def check_ledger(stage: Stage, versions: int) -> None:
    """What must hold of any run, however it was disturbed."""
    with stage.ledger() as ledger:
        updates = ledger.execute("SELECT version FROM updates ORDER BY version").fetchall()
        consumed = ledger.execute(
            "SELECT update_no, version FROM groups WHERE state = 'consumed'"
        ).fetchall()
        leases = ledger.execute("SELECT lease_id FROM leases WHERE state = 'answered'").fetchall()
        groups = ledger.execute("SELECT lease_id FROM groups").fetchall()
    assert [version for (version,) in updates] == list(range(versions + 1))
    assert Counter(update for update, _ in consumed) == dict.fromkeys(range(1, versions + 1), B)
    # the update to version u consumed what was sampled by version u - 1 - lag, with lag <= S
    assert all(0 <= update - 1 - sampled <= STALENESS for update, sampled in consumed)
    assert sorted(leases) == sorted(groups)


def check_capacity(stage: Stage) -> None:
    """What was granted respects (S + v + 1) B - (accepted + running) >= 0 at this moment, where v B
    of the accepted groups were consumed: so (S + 1) B bounds what is ahead of the learner."""
    with stage.ledger() as ledger:
        (ahead,) = ledger.execute(
            "SELECT (SELECT count(*) FROM leases WHERE split = 'train' AND state = 'open')"
            " + (SELECT count(*) FROM groups WHERE split = 'train'"
            " AND state IN ('received', 'scored'))"
        ).fetchone()
    assert ahead <= (STALENESS + 1) * B


def after(version: int) -> Callable[[Event], bool]:
    """Picks an update that led further than to `version`."""
    return lambda event: event["event"] == "update" and event["version"] > version


def dropped_as_stale(stage: Stage) -> int:
    with stage.ledger() as ledger:
        query = "SELECT count(*) FROM groups WHERE reason = 'stale'"
        (count,) = ledger.execute(query).fetchone()
    return int(count)


def learner_of(hub: Program) -> psutil.Process:
    """The learner process that a hub has now."""
    while True:
        for child in psutil.Process(hub.pid).children():
            with suppress(psutil.NoSuchProcess):
                if "echo_hub.learner.process" in child.cmdline():
                    return child


def check_receipts(stage: Stage, node: Program, joined: Event) -> None:
    """Every receipt the node holds is one group in the ledger, and the other way round.

    A group whose receipt was lost is handed in again; its receipt then says `duplicate`. A group
    that went stale after its receipt stays in the ledger, and the node is told with a verdict. A
    node that was away when the run ended may be left with groups it cannot hand in any more.
    """
    (summary,) = node.named("summary")
    key = public_key_of(joined["node"])
    with stage.ledger() as ledger:
        (kept,) = ledger.execute("SELECT count(*) FROM groups WHERE node = ?", (key,)).fetchone()
    held = summary["accepted"] + len(node.named("verdict"))
    assert held <= kept <= held + summary["unsent"]


def stop_in_mid_lease(stage: Stage, hub: Program, node: Program, key: bytes) -> list[Any]:
    """Stop (SIGSTOP) the node at a moment when it holds leases; their ids.

    A quick node holds them for a tenth of a second: the ledger is watched, not the clock.
    """
    query = "SELECT lease_id FROM leases WHERE node = ? AND state = 'open'"
    hub.wait_for(named("update", version=2))
    with stage.ledger() as ledger:
        while hub.named("update")[-1]["version"] < 14:
            if not ledger.execute(query, (key,)).fetchall():
                threading.Event().wait(0.002)
                continue
            node.signal(signal.SIGSTOP)  # so that what it holds stays held while we look
            if held := ledger.execute(query, (key,)).fetchall():
                return held
            node.signal(signal.SIGCONT)
    raise AssertionError("the node never held a lease")


def test_a_node_is_killed_in_mid_lease(stage: Stage, port: int) -> None:
    stage.init(port, run={"updates": 16}, network={"directory": False}, **SMALL)
    hub = stage.hub()
    hub.wait_for(named("serving"))
    nodes = [stage.node(0)]
    nodes[0].wait_for(named("version"))  # else the other may do all the work while this one starts
    nodes.append(stage.node(1))
    joined = [node.wait_for(named("joined")) for node in nodes]
    held = stop_in_mid_lease(stage, hub, nodes[0], public_key_of(joined[0]["node"]))
    nodes[0].kill()
    assert hub.wait(300) == 0
    assert nodes[1].wait() == 0
    check_ledger(stage, 16)
    check_receipts(stage, nodes[1], joined[1])
    with stage.ledger() as ledger:
        for (lease_id,) in held:
            query = "SELECT split, prompt_index, state FROM leases WHERE lease_id = ?"
            split, index, state = ledger.execute(query, (lease_id,)).fetchone()
            assert state in ("answered", "released", "spent")
            if state != "answered":  # its prompt went, or waits to go, to somebody else
                query = "SELECT state FROM leases WHERE split = ? AND prompt_index = ?"
                states = Counter(s for (s,) in ledger.execute(query, (split, index)))
                assert states["answered"] <= 1


def test_the_hub_is_killed_in_mid_update(stage: Stage, port: int) -> None:
    stage.init(port, run={"updates": 6}, network={"directory": False}, **SMALL)
    hub = stage.hub()
    hub.wait_for(named("serving"))
    nodes = [stage.node(number) for number in range(2)]
    joined = [node.wait_for(named("joined")) for node in nodes]
    for version in (2, 4):
        hub.wait_for(named("learner", doing="training", version=version))
        hub.kill()
        hub = stage.hub()
        # the update that was cut short is not there, and is made again
        assert hub.wait_for(named("serving"))["version"] in (version, version + 1)
        check_capacity(stage)
        hub.wait_for(named("update"))
        check_capacity(stage)
    assert hub.wait(300) == 0
    for node, greeting in zip(nodes, joined, strict=True):
        node.stop()  # one that was away at the end of the run still waits for its hub
        check_receipts(stage, node, greeting)
    check_ledger(stage, 6)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(3))
def test_hub_and_learner_are_killed_at_many_moments(stage: Stage, port: int, seed: int) -> None:
    """Ten kills a run: of the hub or its learner, up to two seconds after an update."""
    rng = random.Random(seed)
    stage.init(port, run={"updates": 24}, network={"directory": False}, **SMALL)
    hub = stage.hub()
    hub.wait_for(named("serving"))
    nodes = [stage.node(number) for number in range(2)]
    joined = [node.wait_for(named("joined")) for node in nodes]
    reached = 0
    for _ in range(10):
        hub.wait_for(after(reached))
        reached = hub.named("update")[-1]["version"]
        if reached >= 22:
            break
        threading.Event().wait(rng.uniform(0, 2))  # the moment is what is varied
        check_capacity(stage)
        if rng.random() < 0.5:
            learner_of(hub).kill()
        else:
            hub.kill()
            hub = stage.hub()
            assert hub.wait_for(named("serving"))["version"] >= reached
        check_capacity(stage)
    assert hub.wait(600) == 0
    for node, greeting in zip(nodes, joined, strict=True):
        node.stop()
        check_receipts(stage, node, greeting)
    check_ledger(stage, 24)
    # what each kill made stale is less than was in flight: no burst of work generated to be stale
    assert dropped_as_stale(stage) <= 10 * (STALENESS + 1) * B


def test_a_corrupt_chunk_on_disk_is_fetched_again(stage: Stage, port: int) -> None:
    stage.init(port, run={"updates": 2}, network={"directory": False}, **SMALL)
    hub = stage.hub()
    hub.wait_for(named("serving"))
    first = stage.node(0)
    first.wait_for(named("version"))
    first.stop()
    weights = corrupt_base(stage.root / "node-0")
    corrupt_base(stage.run)
    again = stage.node(0)
    assert hub.wait(300) == 0
    assert again.wait() == 0
    # one chunk of the base came anew, from a hub whose own copy had the same chunk rotten
    (summary,) = again.named("summary")
    assert summary["accepted"] > 0
    healed = next((stage.root / "node-0").rglob(weights.name))
    assert healed.read_bytes() == packaged(weights.name).read_bytes()
    check_ledger(stage, 2)


def corrupt_base(folder: Path) -> Path:
    """Flip a byte of the base model's weights in a store."""
    (weights,) = (
        path
        for path in folder.rglob("model.safetensors")
        if path.stat().st_size == packaged("model.safetensors").stat().st_size
    )
    with weights.open("r+b") as file:
        file.seek(500_000)
        byte = file.read(1)
        file.seek(500_000)
        file.write(bytes([byte[0] ^ 1]))
    return weights


def packaged(name: str) -> Path:
    return addmix3_path() / name


def test_sigterm_ends_the_hub_and_it_continues(stage: Stage, port: int) -> None:
    stage.init(port, run={"updates": 5}, network={"directory": False}, **SMALL)
    hub = stage.hub()
    hub.wait_for(named("serving"))
    node = stage.node(0)
    joined = node.wait_for(named("joined"))
    hub.wait_for(named("learner", doing="training", version=2))
    hub.signal(signal.SIGTERM)
    assert hub.wait(60) == 0
    reached = max(event["version"] for event in hub.named("update"))
    assert reached >= 3  # the update in hand was finished
    with stage.ledger() as ledger:
        query = "SELECT version FROM updates WHERE manifest IS NOT NULL ORDER BY version"
        assert ledger.execute(query).fetchall()[-1] == (reached,)  # and published
    hub = stage.hub()
    assert hub.wait_for(named("serving"))["version"] == reached
    assert hub.wait(300) == 0
    node.stop()
    check_receipts(stage, node, joined)
    check_ledger(stage, 5)


def test_sigterm_ends_an_evaluation_that_nobody_answers(stage: Stage, port: int) -> None:
    stage.init(
        port,
        run={"updates": 2},
        network={"directory": False},
        **{**SMALL, "evaluation": {"prompts": 4}},
    )
    hub = stage.hub()
    hub.wait_for(named("serving"))
    node = stage.node(0)
    hub.wait_for(named("learner", doing="training", version=1))
    node.kill()
    hub.wait_for(named("learner", doing="evaluating"))
    hub.signal(signal.SIGTERM)
    assert hub.wait(60) == 0
