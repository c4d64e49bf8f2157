"""A hub, nodes and hostile peers as processes on loopback, for the tests of this folder."""

from __future__ import annotations

import itertools
import json
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).with_name("swarm_program.py")
MIB = 1 << 20
CHUNK = 256 * 1024


class Program:
    """One process of the swarm and the JSON lines that it says."""

    def __init__(self, *arguments: object) -> None:
        self.skipped: list[dict[str, Any]] = []
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def next(self, word: str) -> dict[str, Any]:
        """The next line that has this word; `skipped` are those before it."""
        assert self.process.stdout is not None
        self.skipped.clear()
        for line in self.process.stdout:
            said: dict[str, Any] = json.loads(line)
            if word in said:
                return said
            self.skipped.append(said)
        raise AssertionError(f"it ended with {self.process.wait()} without saying {word!r}")

    def order(self, **order: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()

    def usage(self) -> dict[str, Any]:
        """Seconds of CPU, and the most memory ever resident."""
        self.order(usage=True)
        return self.next("cpu_s")

    def finish(self) -> list[dict[str, Any]]:
        """Close its input; all it says until it ends."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.stdout is not None
        said = [json.loads(line) for line in self.process.stdout]
        assert self.process.wait() == 0
        return said

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, and wait for its end."""
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None and not pipe.closed:
                pipe.close()


class Published:
    """What the hub offers: the folder it is made of, and the file with its manifest's envelope."""

    def __init__(self, source: Path, envelope: str, size: int) -> None:
        self.source = source
        self.envelope = envelope
        self.size = size

    def check(self, node: Program) -> dict[str, Any]:
        """Wait until a node has all of it, and look at what it has."""
        said = node.next("complete")
        assert contents(Path(said["complete"])) == contents(self.source)
        return said


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


class Lab:
    """A hub, and nodes with stores that outlive them."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._programs: list[Program] = []
        self._versions = itertools.count(1)
        self._scenes = itertools.count(1)
        self._scene = root / "0"
        self.hub = Program("hub", root / "hub")
        self.address = self.hub.next("address")["address"]

    def clear(self) -> None:
        """End every node. Those that come from now on have stores and keys of their own."""
        while self._programs:
            self._programs.pop().close()
        self._scene = self._root / str(next(self._scenes))
        self._scene.mkdir()

    def close(self) -> None:
        self.clear()
        self.hub.close()

    def _start(self, *arguments: object) -> Program:
        self._programs.append(Program(*arguments))
        return self._programs[-1]

    def node(self, name: str, *more: object) -> Program:
        """A node that is on its way to the hub."""
        key = self._scene / f"{name}.pem"
        return self._start("node", self._scene / name, key, self.address, *more)

    def hostile(self, name: str, how: str) -> Program:
        """A peer that misbehaves in one of the ways of `hostile.WAYS`."""
        return self._start("hostile", self._scene / f"{name}.pem", self.address, how)

    def publish(
        self, source: Path, *, kind: str = "adapter", version: int = 0, chunk: int = CHUNK
    ) -> Published:
        """Have the hub offer a folder."""
        self.hub.order(publish=str(source), kind=kind, version=version, chunk=chunk)
        said = self.hub.next("published")
        return Published(source, said["published"], said["size"])

    def adapter(self, size: int, *, chunk: int = CHUNK) -> Published:
        """Random bytes, published as the next version."""
        version = next(self._versions)
        source = self._root / f"version-{version}"
        source.mkdir()
        (source / "weights").write_bytes(random.Random(version).randbytes(size))
        return self.publish(source, version=version, chunk=chunk)

    def base(self) -> Published:
        """A model in several shards beside small files, published as a base."""
        number = next(self._versions)
        rng = random.Random(number)
        source = self._root / f"base-{number}"
        (source / "tokenizer").mkdir(parents=True)
        for shard, size in enumerate((3 * MIB, 3 * MIB + 17, MIB - 17), 1):
            path = source / f"model-{shard:05d}-of-00003.safetensors"
            path.write_bytes(rng.randbytes(size))
        for name, size in (
            ("config.json", 700),
            ("model.safetensors.index.json", 9000),
            ("tokenizer/tokenizer.json", 600_000),
            ("tokenizer/empty.txt", 0),
        ):
            (source / name).write_bytes(rng.randbytes(size))
        return self.publish(source, kind="base", version=number)


def go(published: Published, *nodes: Program) -> None:
    """All of these nodes begin to fetch, once each of them is ready."""
    for node in nodes:
        node.next("ready")
    for node in nodes:
        node.order(fetch=published.envelope)
