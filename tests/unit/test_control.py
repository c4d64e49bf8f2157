"""The control socket: who is answered, what hostile input does (nothing), the lock of a folder."""

from __future__ import annotations

import os
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from net_support import in_trio

from echo_node.control import server as server_module
from echo_node.control.client import ask_node
from echo_node.control.lock import find_running, running_here, socket_path
from echo_node.control.messages import (
    HEADER,
    MAX_REQUEST_BYTES,
    GetLimits,
    GetLogs,
    GetStatus,
    LimitsInForce,
    Logs,
    Pause,
    Refused,
    Reply,
    Request,
    SetLimits,
)
from echo_node.control.server import MOST_CLIENTS, listening
from echo_node.paths import NodeFolder
from echo_p2p.errors import AlreadyRunningError, ConfigError, NotRunningError


async def answer(request: Request) -> Reply:
    if isinstance(request, GetLogs):
        return Logs(lines=[])
    if isinstance(request, Pause):
        await trio.sleep_forever()
    if isinstance(request, SetLimits):
        raise ConfigError("ram is wrong.", fix="Write 4GB.")
    return LimitsInForce(file="/here/node.toml", entries=[])


@asynccontextmanager
async def a_node(root: Path) -> AsyncIterator[NodeFolder]:
    folder = NodeFolder(root)
    with running_here(folder) as holder:
        async with listening(Path(holder.socket)) as server, trio.open_nursery() as nursery:
            nursery.start_soon(server.serve, answer)
            yield folder
            nursery.cancel_scope.cancel()


async def ask(folder: NodeFolder, request: Request, kind: type[Reply]) -> Reply:
    return await trio.to_thread.run_sync(ask_node, folder, request, kind)


async def exchange(folder: NodeFolder, data: bytes, *, end: bool = True) -> bytes:
    """Send bytes; all that comes back."""
    with trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        await client.connect(str(socket_path(folder.root)))
        stream = trio.SocketStream(client)
        got = b""
        try:
            await stream.send_all(data)
            if end:
                await stream.send_eof()
            while more := await stream.receive_some():
                got += more
        except trio.BrokenResourceError:
            pass
        return got


def framed(body: bytes) -> bytes:
    return HEADER.pack(len(body)) + body


def refused(reply: bytes) -> Refused:
    return msgspec.msgpack.decode(reply[HEADER.size :], type=Refused)


@in_trio
async def test_a_request_is_answered_and_a_refusal_is_an_error(tmp_path):
    async with a_node(tmp_path) as folder:
        assert await ask(folder, GetLogs(), Logs) == Logs(lines=[])
        with pytest.raises(ConfigError, match=r"ram is wrong\. Write 4GB"):
            await ask(folder, SetLimits(changes={"ram": "x"}), LimitsInForce)
        with pytest.raises(NotRunningError, match="does not answer"):
            await ask(folder, GetStatus(), Logs)  # a reply of another kind
    with pytest.raises(NotRunningError, match="no node is running"):
        await ask(folder, GetLogs(), Logs)
    assert not socket_path(tmp_path).exists()


@in_trio
async def test_only_its_user_can_open_it(tmp_path):
    root = tmp_path / "node"
    before = os.umask(0)
    try:
        async with a_node(root) as folder:
            assert stat.S_IMODE(socket_path(root).stat().st_mode) == 0o600
            assert stat.S_IMODE(folder.lock.stat().st_mode) == 0o600
    finally:
        os.umask(before)


@pytest.mark.skipif(os.getuid() != 0, reason="becomes another user")
@in_trio
async def test_another_user_is_not_answered_even_if_the_mode_let_it(tmp_path):
    async with a_node(tmp_path) as folder:
        path = socket_path(folder.root)
        path.chmod(0o666)
        for parent in path.parents[:4]:
            parent.chmod(0o755)
        program = (
            "import os, socket, sys; os.setuid(65534); s = socket.socket(socket.AF_UNIX);"
            "s.connect(sys.argv[1]); s.settimeout(30); print(len(s.recv(9)))"
        )
        done = await trio.run_process(
            [sys.executable, "-c", program, str(path)], capture_stdout=True, check=False,
            capture_stderr=True,
        )  # fmt: skip
        assert done.stdout == b"0\n" or b"PermissionError" in done.stderr


@in_trio
async def test_garbage_is_refused_and_the_node_goes_on(tmp_path):
    async with a_node(tmp_path) as folder:
        huge = struct.pack(">I", 2**32 - 1)
        for sent in (framed(b"\xc1"), framed(b""), framed(b"\x00" * 100), huge, huge + b"x" * 9999):
            assert "no request" in refused(await exchange(folder, sent)).message
        unknown = msgspec.msgpack.encode({"type": "GetStatus", "more": 1})
        assert "no request" in refused(await exchange(folder, framed(unknown))).message
        over = framed(b"\x00" * (MAX_REQUEST_BYTES + 1))
        await exchange(folder, over)  # answered, or cut off: it is not read to its end
        for sent in (b"", b"\x00", HEADER.pack(50), HEADER.pack(50) + b"x"):
            assert await exchange(folder, sent) == b""
        assert await ask(folder, GetLimits(), LimitsInForce)


@given(st.binary(max_size=200))
def test_no_bytes_are_a_request_by_accident(body: bytes) -> None:
    try:
        decoded = msgspec.msgpack.decode(body, type=Request)
    except (msgspec.DecodeError, ValueError):  # what the server catches
        return
    assert isinstance(decoded, Request)


@in_trio
async def test_many_that_hang_keep_out_nobody_for_long(tmp_path, monkeypatch):
    monkeypatch.setattr(server_module, "REQUEST_S", 0.3)
    async with a_node(tmp_path) as folder, trio.open_nursery() as nursery:
        for number in range(3 * MOST_CLIENTS):  # some say nothing, some half of something
            nursery.start_soon(
                lambda number=number: exchange(folder, b"\x00\x00" * (number % 2), end=False)
            )
        while True:
            try:
                await ask(folder, GetLogs(), Logs)
                break
            except NotRunningError:  # full just now
                await trio.sleep(0.05)


@in_trio
async def test_one_that_does_not_read_its_answer_is_left_alone(tmp_path):
    async with a_node(tmp_path) as folder:
        with trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            await client.connect(str(socket_path(folder.root)))
            await client.send(framed(msgspec.msgpack.encode(Pause())))  # its answer never comes
            assert await ask(folder, GetLogs(), Logs)
        assert await ask(folder, GetLogs(), Logs)


def test_a_second_node_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    folder = NodeFolder(tmp_path)
    with (
        running_here(folder),
        pytest.raises(AlreadyRunningError, match=f"process {os.getpid()}") as refusal,
        running_here(folder),
    ):
        pass
    assert refusal.value.exit_code == 17
    with running_here(folder):
        pass


HOLD = """
import sys, time
from pathlib import Path
from echo_node.control.lock import running_here
from echo_node.paths import NodeFolder
with running_here(NodeFolder(Path(sys.argv[1]))):
    print("held", flush=True)
    time.sleep(600)
"""


def test_the_lock_of_a_killed_node_is_gone_with_it(tmp_path: Path) -> None:
    folder = NodeFolder(tmp_path)
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        assert find_running(folder).pid == process.pid
        with pytest.raises(AlreadyRunningError, match=str(process.pid)), running_here(folder):
            pass
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert str(process.pid) in folder.lock.read_text()  # it is stale
        with pytest.raises(NotRunningError):
            find_running(folder)
        with running_here(folder):
            assert find_running(folder).pid == os.getpid()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()  # type: ignore[union-attr]


@in_trio
async def test_the_socket_of_a_killed_node_is_taken_over(tmp_path):
    left = socket_path(tmp_path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as killed:
        killed.bind(str(left))
    async with a_node(tmp_path) as folder:
        assert await ask(folder, GetLogs(), Logs)


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temporary folder with a short name, which pytest's has not."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", "")
        monkeypatch.setattr("tempfile.tempdir", folder)
        (Path(folder) / "run").mkdir()
        yield Path(folder)


@in_trio
async def test_a_folder_too_deep_for_a_socket_has_it_elsewhere(temporary, monkeypatch):
    deep = temporary / ("d" * 60) / ("e" * 60)
    for runtime in ("", str(temporary / "run")):
        monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
        path = socket_path(deep)
        assert path.is_relative_to(runtime or temporary)
        assert not path.is_relative_to(deep)
        async with a_node(deep) as folder:
            assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
            assert await ask(folder, GetLogs(), Logs)


@in_trio
async def test_a_folder_for_the_socket_that_is_a_link_is_refused(temporary):
    deep = temporary / ("d" * 60) / ("e" * 60)
    socket_path(deep).parent.symlink_to(temporary / "run")
    with pytest.raises(ConfigError, match="not a folder of yours"), running_here(NodeFolder(deep)):
        pass
