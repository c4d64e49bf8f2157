"""What a volunteer does to a running node, with a real node, a real engine and real programs."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import psutil
import pytest
import trio
from engine_models import make_adapter, make_base
from net_support import until
from node_process import COMMAND, NodeProcess, in_trio, joined
from small_hub import SmallHub

from echo_node.control.client import ask_node
from echo_node.control.messages import (
    GetStatus,
    LimitsInForce,
    Reply,
    Request,
    SetLimits,
    Status,
)
from echo_node.paths import NodeFolder
from echo_node.snapshot import Snapshot
from echo_p2p.artifact.store import Store
from echo_p2p.errors import ConfigError

R = TypeVar("R", bound=Reply)


@pytest.fixture
def hub(tmp_path: Path) -> SmallHub:
    base = make_base(tmp_path / "base")
    hub = SmallHub(Store(tmp_path / "hub-store", cap_bytes=None), base)
    hub.publish(0, make_adapter(base, tmp_path / "adapter", 1))
    return hub


class Volunteer:
    """Somebody at another terminal."""

    def __init__(self, home: Path) -> None:
        self._folder = NodeFolder(home)
        self._environment = {
            **os.environ, "ECHO_NODE_HOME": str(home), "XDG_CONFIG_HOME": str(home),
            "COLUMNS": "150",
        }  # fmt: skip

    async def types(self, *arguments: str, code: int = 0) -> str:
        done = await trio.run_process(
            [*COMMAND, *arguments], capture_stdout=True, capture_stderr=True, check=False,
            env=self._environment,
        )  # fmt: skip
        assert done.returncode == code, (arguments, done)
        return (done.stdout + done.stderr).decode()

    async def asks(self, request: Request, kind: type[R]) -> R:
        """What a command asks, without the time that one takes to start."""
        return await trio.to_thread.run_sync(ask_node, self._folder, request, kind)

    async def status(self) -> Snapshot:
        return (await self.asks(GetStatus(), Status)).snapshot

    async def sets(self, **limits: str) -> None:
        await self.asks(SetLimits(changes=limits), LimitsInForce)


def is_gone(process: psutil.Process) -> bool:
    """It has ended, and its memory is free."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def has_engine(node: NodeProcess) -> bool:
    return any(
        "echo_node.engines.process" in child.cmdline()
        for child in psutil.Process(node.process.pid).children()
        if not is_gone(child)
    )


async def works(hub: SmallHub, groups: int = 2) -> None:
    """Wait until so many more groups were answered; what is given back is ordered again."""
    wanted, known = hub.answered() + groups, len(hub.returned)
    hub.order(groups)

    def changed() -> bool:
        return hub.answered() >= wanted or len(hub.returned) > known

    while hub.answered() < wanted:
        await hub.changed.until(changed)
        hub.order(len(hub.returned) - known)
        known = len(hub.returned)


@contextmanager
def a_game(folder: Path) -> Iterator[None]:
    """A program named `echo-test-game` runs."""
    game = folder / "echo-test-game"
    shutil.copy(shutil.which("sleep") or "", game)
    with subprocess.Popen([str(game), "1000"]) as process:
        try:
            yield
        finally:
            process.kill()


@pytest.mark.slow  # two starts of an engine
@in_trio
async def test_pause_resume_and_leave(hub: SmallHub, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    person = Volunteer(home)
    async with hub.on_the_network() as peer, joined(hub, peer.addresses, home) as node:
        await works(hub)
        status = await person.status()
        assert (status.state, status.version, status.lag) == ("working", 0, 0)
        assert status.pid == node.process.pid
        assert status.limits == ("cpu_threads 1", "priority normal")
        engine = node.engine()
        assert engine.nice() == os.getpriority(os.PRIO_PROCESS, 0)
        refused = await person.types("join", code=17)
        assert f"running already (process {node.process.pid})" in refused

        hub.order(12)
        said = await person.types("pause", "2h")
        assert said.startswith("Paused until ")
        assert said.endswith("(in 2 h): you asked for it.\n")
        await until(lambda: is_gone(engine))
        await hub.changed.until(
            lambda: set(hub.granted) == set(hub.submissions) | set(hub.returned)
        )

        with a_game(home):
            await person.sets(pause_for="echo-test-game")
            assert "echo-test-game is running" in await person.types("resume")
            status = await person.status()
            assert status.state == "paused"
            (reason,) = status.reasons
            assert (reason.code, reason.sentence) == ("program", "echo-test-game is running")
            assert not has_engine(node)
        await until(lambda: bool(node.of("resumed")))
        await works(hub)
        logged = await person.types("logs")
        assert "you asked for it" in logged
        assert "Working again." in logged
        assert "It has left." in await person.types("leave")
        assert await node.process.wait() == 0
    assert hub.farewells == 1
    assert len(hub.hellos) == 1  # all of it in one session
    assert set(hub.granted) == set(hub.submissions) | set(hub.returned)
    summary = node.of("summary")[0]
    assert (summary["reason"], summary["unsent"]) == ("stopped", 0)
    assert not (home / "control.sock").exists()
    assert not node.of("trouble")


@pytest.mark.slow  # four starts of an engine
@in_trio
async def test_limits_changed_at_work(hub: SmallHub, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    person = Volunteer(home)
    async with hub.on_the_network() as peer, joined(hub, peer.addresses, home) as node:
        await works(hub)
        await person.sets(pause_for="echo-test-game", gpu_duty="50")
        engine = node.engine()
        with a_game(home):  # at work, so at once
            await until(lambda: is_gone(engine))
            (reason,) = (await person.status()).reasons
            assert reason.sentence == "echo-test-game is running"
        await works(hub)

        first = node.engine()
        await person.types("limits", "set", "cpu_threads=2", "priority=low", "--save")
        await until(lambda: is_gone(first))
        await works(hub)
        second = node.engine()
        assert second.nice() == 10
        assert "cpu_threads = 2" in (home / "echo-p2p" / "node.toml").read_text()

        await person.sets(ram="100MB")  # an engine with torch takes more
        await until(lambda: is_gone(second))
        (reason,) = (await person.status()).reasons
        assert "100 MB allowed" in reason.sentence
        with pytest.raises(ConfigError, match="neither a size nor a share"):
            await person.sets(ram="lots")
        await person.sets(ram="50%")
        await works(hub)
    assert len(hub.hellos) == 1
    assert not node.of("trouble")


@pytest.mark.slow
@in_trio
async def test_a_node_that_stood_still_goes_on(hub: SmallHub, tmp_path: Path) -> None:
    """As when a laptop sleeps, but for the clocks: those are a unit test's."""
    home = tmp_path / "home"
    home.mkdir()
    async with hub.on_the_network() as peer, joined(hub, peer.addresses, home) as node:
        await works(hub)
        node.process.send_signal(signal.SIGSTOP)
        hub.order(2)
        await trio.sleep(8)  # longer than what counts as standing still
        node.process.send_signal(signal.SIGCONT)
        await works(hub)
        await until(lambda: any("stood still for" in note["message"] for note in node.of("note")))
        await hub.changed.until(lambda: len(hub.hellos) == 2)
        await works(hub)


@pytest.mark.slow
@pytest.mark.parametrize("after", ["reading", "connecting", "fetching", "loading"])
@in_trio
async def test_sigterm_at_any_point_ends_it_in_order(
    hub: SmallHub, tmp_path: Path, after: str
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    async with hub.on_the_network() as peer, joined(hub, peer.addresses, home) as node:
        await until(lambda: any(step["step"].startswith(after) for step in node.of("step")))
        node.process.send_signal(signal.SIGTERM)
        code = await node.process.wait()
        assert code in (0, 130, -signal.SIGTERM)  # the last: before anything is begun
        assert "Traceback" not in node.stderr
        assert not [
            child for child in psutil.Process().children(recursive=True)
            if not is_gone(child) and "echo_node" in " ".join(child.cmdline())
        ]  # fmt: skip
    await Volunteer(home).types("status", code=16)
