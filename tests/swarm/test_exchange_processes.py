"""The exchange between processes that are killed, stopped and started again."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).with_name("swarm_program.py")
MIB = 1 << 20
CHUNK = 256 * 1024
SIZE = 16 * MIB


class Program:
    """One process of the swarm and the JSON lines that it says."""

    def __init__(self, *arguments: object) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def next(self, word: str) -> dict[str, Any]:
        """The next line that has this word; earlier ones are skipped."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            said: dict[str, Any] = json.loads(line)
            if word in said:
                return said
        raise AssertionError(f"it ended with {self.process.wait()} without saying {word!r}")

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


class Lab:
    """A hub with something to publish, and nodes with stores that outlive them."""

    def __init__(self, root: Path, stack: ExitStack) -> None:
        self._root = root
        self._stack = stack
        self.source = root / "source"
        self.source.mkdir()
        (self.source / "weights").write_bytes(random.Random(0).randbytes(SIZE))
        self.hub = self._start("hub", root / "hub", self.source, CHUNK)
        self._offer = self.hub.next("address")

    def _start(self, *arguments: object) -> Program:
        program = Program(*arguments)
        self._stack.callback(program.close)
        return program

    def node(self, name: str) -> Program:
        """A node that is connected and waits for `go`."""
        return self._start(
            *("node", self._root / name, self._root / f"{name}.pem"),
            *(self._offer["envelope"], self._offer["address"]),
        )

    def check(self, node: Program) -> dict[str, Any]:
        """Wait until it has everything, and look at what it has."""
        said = node.next("complete")
        assert (Path(said["complete"]) / "weights").read_bytes() == (
            self.source / "weights"
        ).read_bytes()
        return said


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with ExitStack() as stack:
        yield Lab(tmp_path, stack)


def _go(*nodes: Program) -> None:
    for node in nodes:
        node.next("ready")
    for node in nodes:
        node.go()


def test_a_killed_node_resumes_and_the_others_do_not_notice(lab: Lab) -> None:
    others = [lab.node("b"), lab.node("c")]
    killed = lab.node("a")
    _go(killed, *others)
    had = 0
    while had < SIZE // 3:
        had = killed.next("done")["done"]
    killed.signal(signal.SIGKILL)
    killed.process.wait()
    for node in others:
        lab.check(node)
    again = lab.node("a")
    _go(again)
    said = lab.check(again)
    assert said["from_hub"] + said["from_peers"] <= SIZE - had


def test_a_stopped_node_holds_nobody_up(lab: Lab) -> None:
    others = [lab.node("b"), lab.node("c")]
    stopped = lab.node("a")
    _go(stopped, *others)
    stopped.next("done")
    stopped.signal(signal.SIGSTOP)
    for node in others:
        lab.check(node)
    stopped.signal(signal.SIGCONT)
    lab.check(stopped)


def test_the_hub_sends_each_chunk_about_once(lab: Lab) -> None:
    nodes = [lab.node(name) for name in "abc"]
    _go(*nodes)
    said = [lab.check(node) for node in nodes]
    from_hub = sum(one["from_hub"] for one in said)
    assert SIZE <= from_hub <= 1.5 * SIZE
    assert from_hub + sum(one["from_peers"] for one in said) <= 3.2 * SIZE


def test_memory_does_not_grow_with_the_artifact(lab: Lab) -> None:
    node = lab.node("a")
    before = node.next("ready")["peak_kib"]
    node.go()
    assert lab.check(node)["peak_kib"] - before < SIZE / 1024
