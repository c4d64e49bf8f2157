"""The real program in a pseudo-terminal of 80 by 24, read by a terminal emulator."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import termios
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pyte
import pytest
import trio
from engine_models import make_adapter, make_base
from net_support import until
from node_process import COMMAND, in_trio
from small_hub import RUN_ID, SmallHub

from echo_p2p.artifact.store import Store
from echo_p2p.bootstrap import render_bootstrap

COLOURS = re.compile(r"\x1b\[[\d;]*(?:3[0-7]|4[0-7]|9[0-7]|38;|48;)[\d;]*m")
LEAVES_SCREEN = "\x1b[?1049l"


class Terminal:
    """A program in a terminal of its own: what it wrote, and what can be read on the screen."""

    def __init__(self, width: int, height: int) -> None:
        self.master, self.slave = pty.openpty()
        self.written = ""
        self.screen = pyte.Screen(width, height)
        self._stream = pyte.Stream(self.screen)
        self.resize(width, height)

    def resize(self, width: int, height: int) -> None:
        size = struct.pack("HHHH", height, width, 0, 0)
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, size)  # tells the program by SIGWINCH
        self.screen.resize(height, width)
        self.screen.reset()

    def types(self, text: str) -> None:
        os.write(self.master, text.encode())

    def shows(self, text: str) -> bool:
        return any(text in line for line in self.screen.display)

    async def read(self) -> None:
        async with trio.lowlevel.FdStream(os.dup(self.master)) as stream:
            await self._read(stream)

    async def _read(self, stream: trio.lowlevel.FdStream) -> None:
        rest = b""
        try:
            async for data in stream:
                text = (rest + data).decode(errors="ignore")
                rest = b""
                self.written += text
                self._stream.feed(text)
        except (trio.BrokenResourceError, OSError):  # Linux: the last one has closed the other end
            return


@asynccontextmanager
async def in_a_terminal(
    home: Path, *arguments: str, width: int = 80, height: int = 24, **environment: str
) -> AsyncIterator[tuple[Terminal, trio.Process]]:
    terminal = Terminal(width, height)
    env = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR")}
    env |= {"TERM": "xterm-256color", "XDG_CONFIG_HOME": str(home), **environment}
    process = await trio.lowlevel.open_process(
        [*COMMAND, *arguments],
        stdin=terminal.slave,
        stdout=terminal.slave,
        stderr=terminal.slave,
        env=env,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(terminal.slave)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(terminal.read)
        try:
            yield terminal, process
        finally:
            if process.poll() is None:
                process.kill()
            await process.wait()
            nursery.cancel_scope.cancel()
            os.close(terminal.master)


@pytest.fixture
def hub(tmp_path: Path) -> SmallHub:
    base = make_base(tmp_path / "base")
    hub = SmallHub(Store(tmp_path / "hub-store", cap_bytes=None), base)
    hub.publish(0, make_adapter(base, tmp_path / "adapter", 1))
    return hub


def joining(home: Path, hub: SmallHub, addresses: tuple[str, ...]) -> list[str]:
    home.mkdir()
    bootstrap = home / "bootstrap.toml"
    key = hub.identity.peer_id
    bootstrap.write_text(
        render_bootstrap(network="t", run_id=RUN_ID, hub_key=key, addresses=(addresses * 3)[:3])
    )
    return [
        "join", "--bootstrap", str(bootstrap), "--data-dir", str(home),
        "--listen", "/ip4/127.0.0.1/tcp/0", "--threads", "1", "--limit", "priority=normal",
    ]  # fmt: skip


@pytest.mark.slow  # a start of a node with its engine
@in_trio
async def test_the_screen_of_a_node_at_work(hub: SmallHub, tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with hub.on_the_network() as peer:
        join = joining(home, hub, peer.addresses)
        async with in_a_terminal(home, *join, NO_COLOR="1") as (terminal, process):
            hub.order(2)
            await hub.changed.until(lambda: hub.answered() == 2)
            await until(lambda: terminal.shows("2 accepted, rejected: none"))
            for wanted in ("Working.", "version 0, 0 behind the newest", "cpu_threads 1", "Ctrl-C"):
                assert terminal.shows(wanted), terminal.screen.display
            terminal.resize(44, 16)
            await until(lambda: terminal.screen.display[15].startswith("Ctrl-C hands in"))
            assert terminal.shows("Working.")
            terminal.resize(120, 40)
            await until(lambda: terminal.screen.display[39].startswith("Ctrl-C hands in"))
            terminal.types("\x03")
            assert await process.wait() == 0
            await until(lambda: "groups accepted, rejected: none" in terminal.written)
    after = terminal.written.rpartition(LEAVES_SCREEN)[2]
    assert "2 groups accepted, rejected: none" in after
    assert not COLOURS.search(terminal.written)


@pytest.mark.slow
@in_trio
async def test_colours_are_used_where_they_may_be(hub: SmallHub, tmp_path: Path) -> None:
    home = tmp_path / "home"
    nobody = f"/ip4/127.0.0.1/tcp/9/p2p/{hub.identity.peer_id}"
    join = joining(home, hub, (nobody,))
    async with in_a_terminal(home, *join) as (terminal, process):
        await until(lambda: terminal.shows("Waiting for the hub"))
        await until(lambda: terminal.shows("cannot be reached"))
        assert COLOURS.search(terminal.written)
        terminal.types("\x03")
        await process.wait()
        await until(lambda: LEAVES_SCREEN in terminal.written)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "environment"), [(["--plain"], {}), ([], {"TERM": "dumb"})], ids=["plain", "dumb"]
)
@in_trio
async def test_plain_lines_are_never_redrawn(
    hub: SmallHub, tmp_path: Path, arguments: list[str], environment: dict[str, str]
) -> None:
    home = tmp_path / "home"
    join = joining(home, hub, (f"/ip4/127.0.0.1/tcp/9/p2p/{hub.identity.peer_id}",))
    async with in_a_terminal(home, *join, *arguments, **environment) as (terminal, process):
        await until(lambda: "cannot be reached" in terminal.written)
        terminal.types("\x03")
        await process.wait()
    assert "\x1b" not in terminal.written.replace("\x1b[0m", "")
    assert re.search(r"^\d\d:\d\d:\d\d connecting to the hub", terminal.written, re.MULTILINE)
