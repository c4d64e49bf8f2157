"""The `echo-node` command, as a volunteer runs it: in a process of its own, with a real engine."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from math import inf
from pathlib import Path

import pytest
from engine_models import make_adapter, make_base
from net_support import until
from node_process import COMMAND, in_trio, joined
from small_hub import RUN_ID, SmallHub

from echo_p2p import __version__
from echo_p2p.artifact.store import Store
from echo_p2p.identity import Identity


def run(*arguments: str, home: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "NO_COLOR": "1", "COLUMNS": "200"}
    environment["ECHO_NODE_HOME"] = str(home or "/nonexistent/home")
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, env=environment, timeout=60
    )


def cpu_s(*command: str) -> float:
    """CPU seconds of a command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, capture_output=True, check=True, timeout=60)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_help_is_quick_and_imports_no_torch() -> None:
    assert "join" in run("--help").stdout
    hello = "import typer; app = typer.Typer(); app.command()(lambda: None); app(['--help'])"
    # 0.18 s on a quiet machine, nearly all of it typer's. The least of each is what it takes:
    # a neighbour on the same core only adds, now to the one, now to the other.
    ours, bare = inf, inf
    for _ in range(15):
        ours = min(ours, cpu_s(*COMMAND, "--help"))
        bare = min(bare, cpu_s(sys.executable, "-c", hello))
        if ours < 1.5 * bare:
            break
    assert ours < 1.5 * bare
    traced = subprocess.run(
        [sys.executable, "-X", "importtime", *COMMAND[1:], "join", "--help"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    imported = {line.rpartition("|")[2].strip() for line in traced.stderr.splitlines()}
    assert "typer" in imported
    assert not imported & {"torch", "transformers", "hivemind", "libp2p", "numpy"}


def test_version_and_identity(tmp_path: Path) -> None:
    assert run("--version").stdout.strip() == f"echo-node {__version__}"
    shown = run("identity", home=tmp_path)
    assert shown.stdout.strip() == Identity.load(tmp_path / "identity.pem").peer_id
    assert run("identity", home=tmp_path).stdout == shown.stdout


@pytest.mark.parametrize(
    ("spoil", "arguments", "code", "complaint"),
    [
        (lambda home: None, ["--bootstrap", "nowhere.toml"], 2, "cannot read nowhere.toml"),
        (lambda home: None, ["--bootstrap", "http://hub.example/b"], 2, "on its way to you"),
        (lambda home: None, ["--run", "other"], 2, "has no run 'other'"),
        (lambda home: None, ["--log-level", "loud"], 2, "choose debug, info"),
        (lambda home: (home / "identity.pem").write_text("x"), [], 3, "chmod 600"),
        (lambda home: (home / "store").write_text("x"), [], 6, "store"),
        (lambda home: None, ["--listen", "/ip4/203.0.113.1/tcp/1"], 5, "cannot listen"),
        (
            lambda home: None,
            ["--max-upload", "20mb"],
            2,
            "--max-upload: '20mb' is not a rate",
        ),
        (lambda home: None, ["--max-download", "0"], 2, "--max-download: a node cannot do without"),
        (lambda home: None, ["--listen", "foo"], 2, "'foo' is not an address to listen on"),
        (lambda home: None, ["--data-dir", "/etc/passwd"], 2, "/etc/passwd is not a folder."),
    ],
)
def test_each_error_is_a_sentence_and_an_exit_code(
    tmp_path: Path, spoil: Callable[[Path], object], arguments: list[str], code: int, complaint: str
) -> None:
    spoil(tmp_path)
    ended = run("join", *arguments, home=tmp_path)
    assert ended.returncode == code
    assert complaint in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.fixture
def hub(tmp_path: Path) -> SmallHub:
    base = make_base(tmp_path / "base")
    hub = SmallHub(Store(tmp_path / "hub-store", cap_bytes=None), base)
    hub.publish(0, make_adapter(base, tmp_path / "adapter", 1))
    return hub


@in_trio
async def test_a_volunteer_joins_works_loses_an_engine_and_stops(
    hub: SmallHub, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    hub.order(3)
    async with hub.on_the_network() as peer:
        async with joined(hub, peer.addresses, home, traced=True) as node:
            await until(lambda: hub.answered() == 3)
            node.engine().kill()
            hub.order(1)
            await until(lambda: hub.answered() == 4)
            engine = node.engine()
            node.process.send_signal(signal.SIGINT)
            assert await node.process.wait() == 0
        assert not engine.is_running()
        summary = node.events[-1]
        assert (summary["event"], summary["reason"]) == ("summary", "stopped")
        assert (summary["groups"], summary["accepted"], summary["rollouts"]) == (4, 4, 16)
        assert ["ended with code -9" in event["message"] for event in node.of("trouble")] == [True]
        assert "ended with code" not in node.stderr  # it is told once
        assert summary["bytes_from_hub"] > 10_000
        assert node.of("joined")[0]["run"] == RUN_ID
        assert [event["version"] for event in node.of("version")] == [0]
        assert "fetching the base model" in [event["step"] for event in node.of("step")]
        imported = {line.rpartition("|")[2].strip() for line in node.stderr.splitlines()}
        assert "libp2p" in imported
        assert not imported & {"torch", "transformers", "hivemind"}


@in_trio
async def test_the_second_interrupt_quits_at_once(hub: SmallHub, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    async with hub.on_the_network() as peer, joined(hub, peer.addresses, home) as node:
        await until(lambda: bool(node.of("version")))
        engine = node.engine()
        engine.suspend()
        hub.order(1)
        await until(lambda: len(hub.granted) == 1)
        node.process.send_signal(signal.SIGTERM)
        await until(lambda: bool(node.of("note")))
        node.process.send_signal(signal.SIGTERM)
        assert await node.process.wait() == 130
        assert not engine.is_running()
        assert node.events[-1]["reason"] == "quit"
