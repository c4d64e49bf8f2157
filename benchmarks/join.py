"""From the command to the first accepted rollout, and what the node's process takes after that.

Starts a hub of the small model on loopback, and once that is idle `echo-node join` in a new folder;
asks the node over its control socket how it stands, and prints when each step began, in seconds
from the command on, the CPU seconds of the node's process and of the engine's until the first group
was accepted, and then, for `--minutes`, the memory (RSS, MB) and the CPU share of both. `--times`
joins so often, each time as a newcomer, and prints the median. The bound is 15 s.

    python benchmarks/join.py [--times 3] [--minutes 5] [--bootstrap FILE] [-- OPTION OF JOIN ...]

`--bootstrap` joins a hub that runs already. The load of the machine at the start is printed too: a
busy one makes everything slower.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from echo_node.control.client import ask_node
from echo_node.control.messages import GetLogs, GetStatus, Logs, Status
from echo_node.paths import node_folder
from echo_p2p.errors import NotRunningError

ASK_EVERY_S = 0.1
SAMPLE_S = 15.0
ENDS_S = 60.0
FOREVER_S = 600.0
IDLE_SHARE = 0.1
"""Of a core: a hub that uses less is done with its start."""


@contextmanager
def a_hub(folder: Path) -> Iterator[Path]:
    """A hub of the small model that waits for nodes; its bootstrap file."""
    run = folder / "run"
    with socket.socket() as any_port:
        any_port.bind(("127.0.0.1", 0))
        port = any_port.getsockname()[1]
    hub = [sys.executable, "-m", "echo_hub.cli"]
    subprocess.run(
        [*hub, "init", str(run), "--port", str(port)], check=True, stdout=subprocess.DEVNULL
    )
    with (folder / "hub.log").open("wb") as log:
        serve = [*hub, "serve", str(run / "run.toml")]
        with subprocess.Popen(serve, stdout=log, stderr=log) as process:
            try:
                wait_until_idle(psutil.Process(process.pid), port)
                yield run / "bootstrap_peers.toml"
            finally:
                process.send_signal(signal.SIGINT)
                process.wait(ENDS_S)


def wait_until_idle(hub: psutil.Process, port: int) -> None:
    """Until a hub listens, and it and its processes have used little for a while."""
    deadline = time.monotonic() + FOREVER_S
    quiet = 0
    while quiet < 3:
        if time.monotonic() > deadline or not hub.is_running():
            raise SystemExit("the hub does not get ready")
        before = family_cpu_s(hub)
        time.sleep(1)
        with socket.socket() as caller:
            heard = caller.connect_ex(("127.0.0.1", port)) == 0
        quiet = quiet + 1 if heard and family_cpu_s(hub) - before < IDLE_SHARE else 0


def family_cpu_s(process: psutil.Process) -> float:
    """CPU seconds of a process and those under it."""
    return sum(map(cpu_s, [process, *process.children(recursive=True)]))


def cpu_s(process: psutil.Process) -> float:
    """CPU seconds of one process."""
    times = process.cpu_times()
    return float(times.user + times.system)


def engine_of(node: psutil.Process) -> psutil.Process:
    """The engine's process of a node at work."""
    (engine,) = [one for one in node.children() if "echo_node.engines.process" in one.cmdline()]
    return engine


def measure(folder: Path, join: list[str], minutes: float) -> float:
    """Join, and print; seconds until the first group was accepted."""
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", flush=True)
    began, wall = time.monotonic(), time.time()
    command = [sys.executable, "-m", "echo_node.cli", "join", "--json", "--data-dir", str(folder)]
    with subprocess.Popen([*command, *join], stdout=subprocess.DEVNULL) as started:
        try:
            accepted_s = first_accepted(folder, started, began)
            node = psutil.Process(started.pid)
            engine = engine_of(node)
            used = f"CPU: node {cpu_s(node):.1f} s, engine {cpu_s(engine):.1f} s"
            for line in ask_node(node_folder(folder), GetLogs(most=100), Logs).lines:
                if line.at - wall <= accepted_s:
                    print(f"{line.at - wall:6.1f} s  {line.text}")
            print(f"{accepted_s:6.1f} s  the first group is accepted. {used}", flush=True)
            watch(node, engine, minutes)
            return accepted_s
        finally:
            started.send_signal(signal.SIGINT)
            started.wait(ENDS_S)


def first_accepted(folder: Path, started: subprocess.Popen[bytes], began: float) -> float:
    """Seconds from `began` until the node says that a group was accepted."""
    while time.monotonic() < began + FOREVER_S:
        if started.poll() is not None:
            raise SystemExit("the node has ended; is a hub running?")
        try:
            status = ask_node(node_folder(folder), GetStatus(), Status).snapshot
        except NotRunningError:
            pass  # it is just starting
        else:
            if status.accepted:
                return time.monotonic() - began
        time.sleep(ASK_EVERY_S)
    raise SystemExit(f"nothing was accepted within {FOREVER_S:.0f} s")


def watch(node: psutil.Process, engine: psutil.Process, minutes: float) -> None:
    """Memory and CPU share of both, every `SAMPLE_S`."""
    began = time.monotonic()
    before = began, cpu_s(node), cpu_s(engine)
    while time.monotonic() < began + 60 * minutes:
        time.sleep(SAMPLE_S)
        now = time.monotonic(), cpu_s(node), cpu_s(engine)
        wall = now[0] - before[0]
        shares = [f"{100 * (now[i] - before[i]) / wall:3.0f}% CPU" for i in (1, 2)]
        sizes = [f"{one.memory_info().rss / 1e6:4.0f} MB" for one in (node, engine)]
        print(f"{now[0] - began:6.0f} s  node {sizes[0]} {shares[0]}, "
              f"engine {sizes[1]} {shares[1]}", flush=True)  # fmt: skip
        before = now


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=0.0)
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--bootstrap", type=Path)
    parser.add_argument("join", nargs="*", help="after --: options of `echo-node join`")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if asked.bootstrap is None:
            with a_hub(Path(folder)) as bootstrap:
                measure_all(bootstrap, asked)
        else:
            measure_all(asked.bootstrap, asked)


def measure_all(bootstrap: Path, asked: argparse.Namespace) -> None:
    """So often as asked, each time in a new folder."""
    taken = []
    for _ in range(asked.times):
        with tempfile.TemporaryDirectory() as home:
            join = ["--bootstrap", str(bootstrap), *asked.join]
            taken.append(measure(Path(home), join, asked.minutes))
    print(f"median of {len(taken)}: {statistics.median(taken):.1f} s; wanted: under 15 s")


if __name__ == "__main__":
    main()
