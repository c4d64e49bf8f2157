"""A hub and nodes of ours in the network lab, each a process with a link of its own, driven.

They run `lab_program.py`. A swarm is ready when `open_swarm` gives it: every node is connected to
the hub and has an earlier version on its disk, as in a run.
"""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blake3 import blake3
from netlab import Host, Link, open_lab

MIB = 1 << 20
PORT = 4001
START_S = 120.0
WARM_BYTES = 4 * MIB  # of the version that they begin with
PROGRAM = Path(__file__).with_name("lab_program.py")


class Program:
    """A process in the lab that says JSON lines and takes them."""

    def __init__(self, host: Host, *arguments: object, stderr: int | None = None) -> None:
        self.host = host
        self.process = host.start(
            *map(str, arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
        self._lines: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(json.loads(line))
        self._lines.put(None)

    def next(self, deadline: float, **wanted: Any) -> dict[str, Any]:
        """The next line with these words, each with this value unless it is None; others go by.

        Raises:
            TimeoutError: it did not come before `time.monotonic()` is `deadline`.
            RuntimeError: the program has ended.
        """
        while True:
            left = max(0.0, deadline - time.monotonic())
            try:
                said = self._lines.get(timeout=left)
            except queue.Empty:
                raise TimeoutError(f"{self.host.name} said nothing of {wanted} in time") from None
            if said is None:
                raise RuntimeError(f"{self.host.name} ended with {self.process.wait()}")
            if all(word in said and value in (None, said[word]) for word, value in wanted.items()):
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
class Broadcast:
    """One version on its way: when it was published, and what each node said when it had it."""

    began: float
    said: list[dict[str, Any]]

    @property
    def node_s(self) -> list[float]:
        """Seconds from publication, node by node."""
        return [one["at"] - self.began for one in self.said]

    def total(self, word: str) -> int:
        return sum(one[word] for one in self.said)


class Swarm:
    """A hub and its nodes; those in `ordered` are leaves, which hear of a version from us."""

    def __init__(
        self, hub: Program, nodes: list[Program], root: Path, *, ordered: Sequence[Program] = ()
    ) -> None:
        self.hub = hub
        self.nodes = nodes
        self._root = root
        self._ordered = ordered
        self._version = 0
        self._envelope = ""

    @property
    def programs(self) -> list[Program]:
        return [self.hub, *self.nodes]

    def prepare(self, size: int, chunk_bytes: int) -> None:
        """Make the next version: `size` random bytes."""
        self._version += 1
        self.hub.order("make", version=self._version, bytes=size, chunk_bytes=chunk_bytes)
        deadline = time.monotonic() + START_S
        self._envelope = self.hub.next(deadline, envelope=None)["envelope"]
        self.hub.next(deadline, done="make")

    def publish(self) -> float:
        """Announce what was prepared; when that was."""
        self.hub.order("publish")
        said = self.hub.next(time.monotonic() + START_S, published_at=None)
        for node in self._ordered:
            node.order("fetch", envelope=self._envelope)
        return float(said["published_at"])

    def wait(self, nodes: Sequence[Program], began: float, deadline_s: float) -> Broadcast:
        """Until these nodes have the newest version, and it is right, byte for byte."""
        deadline = began + deadline_s
        said = [node.next(deadline, complete=None, version=self._version) for node in nodes]
        for one in said:
            self._check(Path(one["complete"]))
        return Broadcast(began, said)

    def wait_percent(self, node: Program, percent: int, deadline_s: float) -> None:
        """Until a node has so much of the newest version."""
        deadline = time.monotonic() + deadline_s
        while node.next(deadline, percent=None, version=self._version)["percent"] < percent:
            pass

    def broadcast(self, size: int, chunk_bytes: int, deadline_s: float) -> Broadcast:
        """Make a version, publish it, and wait until all nodes have it."""
        self.prepare(size, chunk_bytes)
        return self.wait(self.nodes, self.publish(), deadline_s)

    def _check(self, folder: Path) -> None:
        source = self._root / "hub" / "source" / "adapter.safetensors"
        theirs = folder / source.name
        if blake3(theirs.read_bytes()).digest() != blake3(source.read_bytes()).digest():
            raise RuntimeError(f"{theirs} is not what was published")


@contextmanager
def open_swarm(
    root: Path,
    hub: Link,
    nodes: Sequence[Link],
    *,
    rtt_s: float = 0.0,
    alone: bool = False,
    warm_bytes: int = WARM_BYTES,
    hub_limits: Sequence[str] = (),
    arguments: Callable[[int], Sequence[str]] = lambda _: (),
) -> Iterator[Swarm]:
    """A hub and nodes "n1", "n2", ... with these links; `root` is an empty folder.

    `warm_bytes`: size of the version that they begin with.
    `alone`: the nodes are leaves of the hub and know nobody else.
    `hub_limits` are arguments of `lab_program.py` for the hub.
    `arguments` are further ones of `lab_program.py` for each node, by its number from 0.
    """
    links = {"hub": hub} | {f"n{number}": link for number, link in enumerate(nodes, 1)}
    with open_lab(links, rtt_s=rtt_s) as hosts:
        deadline = time.monotonic() + START_S
        center = start_program(hosts["hub"], root, "hub", *hub_limits)
        address = center.next(deadline, address=None)["address"]
        role = "leaf" if alone else "node"
        members = [
            start_program(hosts[f"n{number + 1}"], root, role, address, *arguments(number))
            for number in range(len(nodes))
        ]
        for node in members:
            node.next(deadline, address=None)
        if not alone:
            for _ in members:
                center.next(deadline, watched_by=None)
        swarm = Swarm(center, members, root, ordered=members if alone else ())
        swarm.broadcast(warm_bytes, MIB, START_S)
        yield swarm


def start_program(
    host: Host, root: Path, role: str, *arguments: object, before: Sequence[str] = ()
) -> Program:
    """`lab_program.py` on a host, its store in a folder of the host's name; `before` as `nice`."""
    folder = root / host.name
    folder.mkdir()
    listen = f"/ip4/{host.address}/tcp/{PORT}"
    return Program(host, *before, sys.executable, PROGRAM, role, folder, listen, *arguments)
