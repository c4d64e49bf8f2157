"""Broadcasts measured: ours in a setting, and what a broadcast does to other requests and a CPU."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from broadcast_settings import Setting
from lab_swarm import Broadcast, Swarm, open_swarm

FOLDER = Path("/dev/shm")  # memory: what is measured is the network, not this machine's disk
PREFIX = "broadcast-"


@dataclass(frozen=True)
class Trial:
    """One broadcast: when the last node had it, in seconds from publication, and what it took.

    `hub_bytes` are those on the hub's link; `from_peers` is the share of what nodes received that
    came from nodes, None where that is not known.
    """

    seconds: float
    hub_bytes: int
    from_peers: float | None = None
    cpu_s: float | None = None
    peak_mib: float | None = None


@dataclass(frozen=True)
class Result:
    """Several broadcasts in one setting by one system."""

    system: str
    setting: Setting
    trials: Sequence[Trial]

    @property
    def typical(self) -> Trial:
        """The one of median time; of an even number the better of the two in the middle."""
        ranked = sorted(self.trials, key=lambda trial: trial.seconds)
        return ranked[(len(ranked) - 1) // 2]

    def record(self) -> dict[str, Any]:
        trial, bound_s = self.typical, self.setting.bound_s
        return {
            "row": self.setting.key,
            "setting": self.setting.title,
            "mib": round(self.setting.mib, 1),
            "system": self.system,
            "seconds": round(trial.seconds, 2),
            "bound": round(bound_s, 2),
            "ratio": round(trial.seconds / bound_s, 2),
            "asked": self.setting.asked if self.system == "echo-p2p" else None,
            "hub copies": round(trial.hub_bytes / self.setting.size, 2),
            "from peers": _rounded(trial.from_peers, 2),
            "CPU s": _rounded(trial.cpu_s, 1),
            "MiB": _rounded(trial.peak_mib, 0),
            "all": [round(one.seconds, 2) for one in self.trials],
        }


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits or None)


@contextmanager
def scratch() -> Iterator[Path]:
    """An empty folder in memory; one that a killed benchmark left behind goes now."""
    for left_over in FOLDER.glob(f"{PREFIX}*"):
        owner = left_over.name.removeprefix(PREFIX).partition("-")[0]
        if owner.isdigit() and not Path("/proc", owner).exists():
            shutil.rmtree(left_over, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=FOLDER))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def measure(setting: Setting, repeats: int, *, alone: bool = False) -> Result:
    """Our broadcast, one version after the other. `alone`: each node from the hub only."""
    system = "echo-p2p, hub to each node" if alone else "echo-p2p"
    if any(setting.harm):
        return Result(system, setting, [_harmed(setting) for _ in range(repeats)])
    with scratch() as root, _open(setting, root, alone=alone) as swarm:
        return Result(system, setting, [_trial(swarm, setting) for _ in range(repeats)])


def _open(setting: Setting, root: Path, *, alone: bool = False) -> AbstractContextManager[Swarm]:
    return open_swarm(
        root,
        setting.hub,
        setting.nodes,
        rtt_s=setting.rtt_s,
        alone=alone,
        arguments=setting.limits,
    )


def _harmed(setting: Setting) -> Trial:
    """A broadcast in which nodes are killed and stopped; each needs a swarm of its own."""
    with scratch() as root, _open(setting, root) as swarm:
        return _trial(swarm, setting)


def _trial(swarm: Swarm, setting: Setting) -> Trial:
    swarm.prepare(setting.size, setting.chunk_bytes)
    survivors = [swarm.nodes[number] for number in setting.survivors]
    counted = [swarm.hub, *survivors]
    cpu_s = sum(program.ask("report")["cpu_s"] for program in counted)
    sent = swarm.hub.host.traffic()[1]
    deadline_s = 60 + 20 * setting.bound_s
    began = swarm.publish()
    for number in range(sum(setting.harm)):
        swarm.wait_percent(swarm.nodes[number], 30, deadline_s)
    for number in range(sum(setting.harm)):
        last = signal.SIGKILL if number < setting.harm[0] else signal.SIGSTOP
        swarm.nodes[number].process.send_signal(last)
    done = swarm.wait(survivors, began, deadline_s)
    sent = swarm.hub.host.traffic()[1] - sent
    after = [program.ask("report") for program in counted]
    return Trial(
        seconds=max(done.node_s),
        hub_bytes=sent,
        from_peers=_from_peers(done),
        cpu_s=sum(one["cpu_s"] for one in after) - cpu_s,
        peak_mib=max(one["peak_mib"] for one in after[1:]),
    )


def _from_peers(done: Broadcast) -> float:
    peers = done.total("from_peers")
    return peers / (peers + done.total("from_hub"))
