"""A real `echo-node join --json`, started by a test, and what it says."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import trio
from small_hub import RUN_ID, SmallHub

from echo_p2p.bootstrap import render_bootstrap

PATIENCE_S = 350.0  # an engine imports torch; on a busy machine that takes its time

MOST_SHOWN = 40
"""Events that are shown of a node whose test failed."""

COMMAND = [sys.executable, "-m", "echo_node.cli"]


def in_trio(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a test in trio."""

    @functools.wraps(test)
    def run_it(**fixtures: Any) -> None:
        async def bounded() -> None:
            with trio.fail_after(PATIENCE_S):
                await test(**fixtures)

        trio.run(bounded)

    return run_it


class NodeProcess:
    """An `echo-node join --json`, and the events it printed."""

    def __init__(self, process: trio.Process) -> None:
        self.process = process
        self.events: list[dict[str, Any]] = []
        self.stderr = ""

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] == kind]

    def engine(self) -> psutil.Process:
        children = psutil.Process(self.process.pid).children()
        (engine,) = [child for child in children if "echo_node.engines.process" in child.cmdline()]
        return engine

    async def read(self) -> None:
        assert self.process.stdout is not None
        rest = b""
        async for data in self.process.stdout:
            *lines, rest = (rest + data).split(b"\n")
            self.events += [json.loads(line) for line in lines]

    async def read_errors(self) -> None:
        assert self.process.stderr is not None
        async for data in self.process.stderr:
            self.stderr += data.decode()


@asynccontextmanager
async def joined(
    hub: SmallHub, addresses: tuple[str, ...], home: Path, *extra: str, traced: bool = False
) -> AsyncIterator[NodeProcess]:
    """A node of this hub's run at work, killed at the end of the block if it has not ended.

    `traced`: with what it imports on its stderr.
    """
    bootstrap = home / "bootstrap.toml"
    text = render_bootstrap(
        network="t", run_id=RUN_ID, hub_key=hub.identity.peer_id, addresses=(addresses * 3)[:3]
    )
    bootstrap.write_text(text)
    process = await trio.lowlevel.open_process(
        [
            sys.executable, *(["-X", "importtime"] if traced else []),
            *COMMAND[1:], "join", "--json",
            "--bootstrap", str(bootstrap), "--data-dir", str(home),
            "--listen", "/ip4/127.0.0.1/tcp/0", "--threads", "1",
            "--limit", "priority=normal", *extra,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "XDG_CONFIG_HOME": str(home)},  # the tester's own limits do not count
    )  # fmt: skip
    node = NodeProcess(process)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.read)
        nursery.start_soon(node.read_errors)
        try:
            yield node
        except BaseException:
            print(*node.events[-MOST_SHOWN:], node.stderr[-4000:], sep="\n")
            raise
        finally:
            if process.poll() is None:
                process.kill()
            await process.wait()
