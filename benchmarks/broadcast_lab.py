"""Broadcasts in the network lab: the settings, the physical bound, and one broadcast of ours.

The bound is what no way of sending can beat: the hub must send every byte once (F / u_hub), each
node must receive every byte (F / d_min), and the N copies must leave through all uplinks together
(N F / (u_hub + sum of u_i)). Kumar and Ross, "Peer-assisted file distribution: the minimum
distribution time" (HotWeb 2006), show that with a fluid instead of chunks it can be reached.
"""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from blake3 import blake3

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "netlab"))

from netlab import Host, Link, open_lab  # noqa: E402

MIB = 1 << 20
PORT = 4001
START_S = 120.0
WARM_MIB = 4  # of the version before the measured ones


@dataclass(frozen=True)
class Setting:
    """One row: links, delay, and what is asked. Rates in bytes a second, sizes in MiB."""

    key: str
    title: str
    hub: Link
    nodes: tuple[Link, ...]
    asked: float | None = None
    mib: int = 64
    chunk_kib: int = 1024
    rtt_s: float = 0.0

    def bound_s(self, among: Sequence[int] | None = None) -> float:
        """The least time until all nodes (or those numbered) have the artifact."""
        nodes = [self.nodes[i] for i in (among if among is not None else range(len(self.nodes)))]
        size = self.mib * MIB
        inf = float("inf")
        up = inf if self.hub.up is None else self.hub.up
        down = min(inf if node.down is None else node.down for node in nodes)
        together = up + sum(inf if node.up is None else node.up for node in nodes)
        return max(size / up, size / down, len(nodes) * size / together)


@dataclass
class Trial:
    """One broadcast: seconds from publication until each node had it, and what it took."""

    node_s: list[float]
    hub_bytes: int
    """On the wire of the hub's link."""
    from_hub: int = 0
    from_peers: int = 0
    cpu_s: float = 0.0
    peak_mib: float = 0.0

    @property
    def seconds(self) -> float:
        return max(self.node_s)


@dataclass
class Result:
    """Several broadcasts in one setting by one system."""

    system: str
    setting: Setting
    trials: list[Trial]
    bound_s: float
    note: str = ""

    @property
    def typical(self) -> Trial:
        """The trial of median time (the better one of the two in the middle)."""
        ranked = sorted(self.trials, key=lambda trial: trial.seconds)
        return ranked[(len(ranked) - 1) // 2]

    def record(self) -> dict[str, Any]:
        trial, copies = self.typical, self.setting.mib * MIB
        received = trial.from_hub + trial.from_peers
        return {
            "row": self.setting.key,
            "setting": self.setting.title,
            "system": self.system,
            "seconds": round(trial.seconds, 2),
            "all_seconds": [round(one.seconds, 2) for one in self.trials],
            "bound_s": round(self.bound_s, 2),
            "ratio": round(trial.seconds / self.bound_s, 3) if self.bound_s else None,
            "asked": self.setting.asked,
            "hub_copies": round(trial.hub_bytes / copies, 2),
            "from_peers": round(trial.from_peers / received, 3) if received else None,
            "cpu_s": round(trial.cpu_s, 1),
            "peak_mib": round(trial.peak_mib),
            "note": self.note,
        }


class Program:
    """A process in the lab that says JSON lines and takes them. Lines are kept until asked for."""

    def __init__(self, host: Host, *arguments: object) -> None:
        self.host = host
        self.process = host.start(
            *map(str, arguments), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._lines: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._passed: list[dict[str, Any]] = []
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(json.loads(line))
        self._lines.put(None)

    def next(self, deadline: float, **wanted: Any) -> dict[str, Any]:
        """The next line that has these words; a value that is not None must be equal too."""
        while True:
            left = max(0.0, deadline - time.monotonic())
            try:
                said = self._lines.get(timeout=left)
            except queue.Empty:
                raise TimeoutError(f"{self.host.name} said nothing of {wanted} in time") from None
            if said is None:
                raise RuntimeError(f"{self.host.name} ended with {self.process.wait()}")
            if all(w in said and (v is None or said[w] == v) for w, v in wanted.items()):
                return said

    def order(self, do: str, **details: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, **details}) + "\n")
        self.process.stdin.flush()

    def ask(self, do: str, **details: Any) -> dict[str, Any]:
        """Give an order and wait until it is done."""
        self.order(do, **details)
        return self.next(time.monotonic() + START_S, done=do)


@dataclass
class Swarm:
    """A hub and nodes of ours in a lab, connected, with an earlier version on every disk."""

    setting: Setting
    hub: Program
    nodes: list[Program]
    root: Path
    version: int = 0
    _sent: int = field(default=0)

    def prepare(self, mib: int) -> None:
        self.version += 1
        chunk = self.setting.chunk_kib * 1024
        self.hub.ask("make", version=self.version, bytes=mib * MIB, chunk_bytes=chunk)

    def publish(self) -> float:
        """Announce what was prepared; when."""
        self._sent = self.hub.host.traffic()[1]
        self.hub.order("publish")
        deadline = time.monotonic() + START_S
        return float(self.hub.next(deadline, published_at=None)["published_at"])

    def wait(self, node: Program, deadline: float) -> dict[str, Any]:
        """Until it has the newest version, whole and right."""
        return node.next(deadline, complete=None, version=self.version)

    def check(self, path: str) -> None:
        """The node's files are the hub's, byte for byte."""
        source = self.root / "hub" / "source" / "adapter.safetensors"
        theirs = Path(path) / source.name
        if blake3(theirs.read_bytes()).digest() != blake3(source.read_bytes()).digest():
            raise RuntimeError(f"{theirs} is not what was published")

    def broadcast(self, mib: int) -> Trial:
        """Publish `mib` MiB and wait until every node has them."""
        self.prepare(mib)
        programs = [self.hub, *self.nodes]
        before = sum(program.ask("report")["cpu_s"] for program in programs)
        began = self.publish()
        deadline = began + 60 + 20 * self.setting.bound_s()
        said = [self.wait(node, deadline) for node in self.nodes]
        hub_bytes = self.hub.host.traffic()[1] - self._sent
        after = [program.ask("report") for program in programs]
        for one in said:
            self.check(one["complete"])
        return Trial(
            node_s=[one["at"] - began for one in said],
            hub_bytes=hub_bytes,
            from_hub=sum(one["from_hub"] for one in said),
            from_peers=sum(one["from_peers"] for one in said),
            cpu_s=sum(one["cpu_s"] for one in after) - before,
            peak_mib=max(one["peak_mib"] for one in after[1:]),
        )


@contextmanager
def open_swarm(setting: Setting, root: Path) -> Iterator[Swarm]:
    """The hub and the nodes of a setting, ready: connected, and one version old."""
    program = Path(__file__).with_name("broadcast_program.py")
    links = {"hub": setting.hub} | {f"n{i}": link for i, link in enumerate(setting.nodes, 1)}
    with open_lab(links, rtt_s=setting.rtt_s) as hosts:

        def start(name: str, role: str, *arguments: object) -> Program:
            listen = f"/ip4/{hosts[name].address}/tcp/{PORT}"
            (root / name).mkdir()
            python = [sys.executable, program, role, root / name, listen]
            return Program(hosts[name], *python, *arguments)

        deadline = time.monotonic() + START_S
        hub = start("hub", "hub")
        address = hub.next(deadline, address=None)["address"]
        nodes = [start(f"n{i}", "node", address) for i in range(1, len(setting.nodes) + 1)]
        for _ in nodes:
            hub.next(deadline, watched_by=None)
        swarm = Swarm(setting, hub, nodes, root)
        swarm.broadcast(WARM_MIB)
        yield swarm


def measure(setting: Setting, root: Path, repeats: int) -> Result:
    """Our broadcast, `repeats` versions one after the other."""
    with open_swarm(setting, root) as swarm:
        trials = [swarm.broadcast(setting.mib) for _ in range(repeats)]
    return Result("echo-p2p", setting, trials, setting.bound_s())
