"""`echo-node` programs beside a hub, on its own machine: for the demo and for `Hub.local`.

The hub's code never imports the node's: these are processes, on the same protocol as any other
node. One ends when its hub's process does, whatever happens to that (`--until-eof`).
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import trio

from echo_hub.paths import RunFolder

JOIN = (
    "echo_node.cli", "join", "--json", "--until-eof", "--limit", "priority=normal",
)  # fmt: skip
"""The module to run, and its first arguments."""


async def run_node(
    folder: RunFolder,
    number: int,
    on_event: Callable[[dict[str, Any]], None],
    *,
    program: Sequence[str] = JOIN,
) -> int:
    """Run one node until it ends or this is cancelled; its exit code.

    Its folder is `node-<number>` in the run's, its words go to `node-<number>.log` there, and
    `on_event` is given each JSON event that it prints.
    """
    home = folder.root / f"node-{number}"
    home.mkdir(exist_ok=True)
    command = [
        sys.executable, "-m", *program,
        "--bootstrap", str(folder.bootstrap),
        "--data-dir", str(home),
        "--listen", "/ip4/127.0.0.1/tcp/0",
        "--threads", "1",
    ]  # fmt: skip
    with (folder.root / f"node-{number}.log").open("ab") as log:
        process = await trio.lowlevel.open_process(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=os.environ
        )
        try:
            assert process.stdout is not None
            rest = b""
            async for data in process.stdout:
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    on_event(json.loads(line))
            return await process.wait()
        finally:
            with trio.CancelScope(shield=True):
                await _end(process)


async def _end(process: trio.Process) -> None:
    if process.returncode is None:
        process.terminate()
        with trio.move_on_after(5):
            await process.wait()
    if process.returncode is None:
        process.kill()
        await process.wait()


def free_ports() -> tuple[int, int]:
    """Two neighbouring TCP ports that are free on loopback."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
            try:
                second.bind(("127.0.0.1", port + 1))
            except (OSError, OverflowError):
                continue
            return port, port + 1


def on_loopback(ports: tuple[int, int]) -> dict[str, Any]:
    """The section `[network]` of a hub that this machine alone can reach."""
    hub, directory = ports
    return {
        "listen": [f"/ip4/127.0.0.1/tcp/{hub}", f"/ip6/::1/tcp/{hub}"],
        "directory_listen": [f"/ip4/127.0.0.1/tcp/{directory}", f"/ip6/::1/tcp/{directory}"],
    }
