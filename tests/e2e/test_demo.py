"""`echo-hub demo`, as a newcomer runs it: processes, a network, and a reward that rises."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from echo_hub.commands.demo import DemoOptions, run_demo
from echo_p2p.errors import ConfigError

FIELDS = {
    "reward_before",
    "reward_after",
    "updates",
    "rollouts_accepted",
    "rollouts_rejected",
    "cheaters_banned",
    "nodes_banned",
    "max_lag",
    "bytes_from_hub",
    "bytes_from_peers",
    "bytes_saved_by_deltas",
    "peer_share",
    "last_node_s",
    "learner_idle_fraction",
    "learner_audit_fraction",
    "interval_before",
    "interval_after",
    "wall_s",
}


def start(*options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "echo_hub.cli", "demo", "--json", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ,
    )


def demo(*options: str) -> dict[str, Any]:
    """Run a demo to its end; its summary."""
    with start(*options) as process:
        try:
            out, errors = process.communicate(timeout=800)
        finally:
            process.terminate()
    assert process.returncode == 0, errors[-3000:]
    summary: dict[str, Any] = json.loads(out.splitlines()[-1])
    assert set(summary) == FIELDS
    return summary


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (DemoOptions(mode="sequential", staleness=3), "staleness of 3 in sequential mode"),
        (DemoOptions(mode="both"), "mode 'both'"),
        (DemoOptions(model="huge"), "no model 'huge'"),
        (DemoOptions(nodes=2, cheaters=2), "2 of 2 nodes would cheat"),
    ],
)
def test_options_that_contradict_each_other(options: DemoOptions, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        run_demo(options, live=False)


@pytest.mark.slow  # the next has two honest nodes beside two that cheat, and checks the same
@pytest.mark.timeout(540)
def test_a_policy_learns() -> None:
    summary = demo("--nodes", "2", "--updates", "14")
    assert summary["reward_after"] - summary["reward_before"] >= 0.3
    assert summary["updates"] == 14
    assert summary["rollouts_accepted"] >= 14 * 32 * 8
    assert 0 < summary["max_lag"] <= 2
    # everything came to each of two nodes once, and no more than about half of it from the hub
    assert summary["bytes_from_peers"] > 0.5 * summary["bytes_from_hub"]
    assert 0.3 < summary["peer_share"] < 0.7  # by the hub's own count of what it sent
    assert summary["last_node_s"] > 0
    assert summary["nodes_banned"] == 0


@pytest.mark.timeout(540)
def test_a_policy_learns_while_cheats_are_found_and_banned() -> None:
    summary = demo("--nodes", "4", "--cheaters", "2", "--updates", "14")
    assert summary["reward_after"] - summary["reward_before"] >= 0.3
    assert summary["updates"] == 14
    assert summary["rollouts_accepted"] >= 14 * 32 * 8
    assert 0 < summary["max_lag"] <= 2
    assert summary["peer_share"] > 0.3
    assert summary["last_node_s"] > 0
    assert summary["cheaters_banned"] == summary["nodes_banned"] == 2
    assert summary["rollouts_rejected"]["banned"] > 0


@pytest.mark.slow
@pytest.mark.timeout(540)
def test_a_policy_learns_in_all_its_weights() -> None:
    summary = demo("--nodes", "2", "--updates", "14", "--adapter", "none")
    assert summary["reward_after"] - summary["reward_before"] >= 0.25
    assert summary["nodes_banned"] == 0
    assert summary["bytes_saved_by_deltas"] > 0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_small_base_learns_a_task_of_several_turns() -> None:
    """The base is made, and what a cheat hands in is found in answers of several turns too."""
    summary = demo("--model", "wordle", "--nodes", "2", "--cheaters", "1", "--updates", "16")
    assert summary["reward_after"] - summary["reward_before"] >= 0.15
    assert summary["rollouts_rejected"]["bad_observation"] > 0
    assert summary["nodes_banned"] == summary["cheaters_banned"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_way_to_cheat_is_found_and_no_honest_node_banned() -> None:
    summary = demo("--nodes", "7", "--cheaters", "5", "--updates", "30")
    assert summary["reward_after"] > 0.85
    assert summary["cheaters_banned"] == summary["nodes_banned"] == 5


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("mode", ["async", "sequential"])
def test_both_modes_reach_the_same_reward(mode: str) -> None:
    rewards = [demo("--mode", mode, "--seed", str(seed))["reward_after"] for seed in (1, 2)]
    assert min(rewards) > 0.85


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_nothing_is_left_behind(tmp_path: Path, number: signal.Signals, code: int) -> None:
    with start("--nodes", "1", "--keep", str(tmp_path / "kept")) as process:
        try:
            family = wait_for_a_node(process)
            process.send_signal(number)
            assert process.wait(60) == code
        finally:
            process.kill()
    _, alive = psutil.wait_procs(family, timeout=60)
    assert not alive


def wait_for_a_node(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """All processes under the demo, as soon as its node is one of them."""
    root = psutil.Process(process.pid)
    while process.poll() is None:
        family = root.children(recursive=True)
        for child in family:
            with suppress(psutil.NoSuchProcess):  # it has just ended
                if "echo_node.cli" in child.cmdline():
                    return family
        psutil.wait_procs(family, timeout=0.2)
    raise AssertionError("the demo ended before it had started a node")
