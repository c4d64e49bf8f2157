"""What the demo's learner does with its time, and who uses the CPU.

Runs `echo-hub demo` (asynchronous, three nodes) and samples the CPU seconds of its processes. The
learner's shares are the demo's own, from the second update on: training, auditing, waiting.

    python benchmarks/idle.py [any options of echo-hub demo, as --updates 30 --model smollm2]

A learner that trains or audits but has to share its core counts as training or auditing: the
shares say what updates wait for, not how busy a core is. That is said by the CPU seconds: where
they fill the cores, an update takes no less than all of them over the number of cores, and only a
learner with a machine of its own would be quicker. Start-up is in the CPU seconds and divided over
the updates.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import defaultdict

import psutil

KINDS = {
    "echo_hub.learner": "learner",
    "echo_hub.scoring.process": "scorers",
    "directory": "directory",
    "p2pd": "directory",
    "echo_node.engines": "engines",
    "echo_node": "nodes",
    "demo": "hub",
}
"""By what is in the command line, the first that fits."""
SAMPLE_S = 0.3


def kind_of(process: psutil.Process) -> str:
    """Which part of the demo a process is."""
    command = " ".join(process.cmdline())
    return next((kind for part, kind in KINDS.items() if part in command), "other")


def cpu_seconds(root: psutil.Process, known: dict[int, tuple[str, float]]) -> None:
    """Bring `known`, (kind, CPU seconds) by process id, up to date."""
    try:
        family = [root, *root.children(recursive=True)]
    except psutil.Error:
        return
    for process in family:
        try:
            kind = known[process.pid][0] if process.pid in known else kind_of(process)
            times = process.cpu_times()
        except psutil.Error:
            continue
        known[process.pid] = (kind, times.user + times.system)


def main() -> None:
    command = [sys.executable, "-m", "echo_hub.cli", "demo", "--json", *sys.argv[1:]]
    known: dict[int, tuple[str, float]] = {}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as demo:
        root = psutil.Process(demo.pid)
        while demo.poll() is None:
            cpu_seconds(root, known)
            time.sleep(SAMPLE_S)
        assert demo.stdout is not None
        summary = json.loads(demo.stdout.read().splitlines()[-1])
    waiting, auditing = summary["learner_idle_fraction"], summary["learner_audit_fraction"]
    print(f"reward {summary['reward_before']} to {summary['reward_after']}, "
          f"{summary['updates']} updates, {summary['wall_s']} s")  # fmt: skip
    print(f"training {1 - waiting - auditing:.2f}, auditing {auditing:.2f}, waiting {waiting:.2f}")
    spent: dict[str, float] = defaultdict(float)
    for kind, seconds in known.values():
        spent[kind] += seconds / summary["updates"]
    for kind, seconds in sorted(spent.items(), key=lambda one: -one[1]):
        print(f"  {kind:10} {seconds:6.2f} CPU s an update")
    total, cores = sum(spent.values()), os.cpu_count() or 1
    print(f"all {total:.2f} CPU s: {total / cores:.2f} s an update at least on {cores} cores, in "
          f"which the learner uses {spent['learner'] * cores / total:.2f} of one")  # fmt: skip


if __name__ == "__main__":
    main()
