"""Child processes over pipes: what holds when the child misbehaves, or the parent is gone."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import psutil
import pytest
import trio
from pipes_child import Do, Echo

from echo_p2p import pipes
from echo_p2p.errors import ProcessError
from echo_p2p.pipes import Child, child_process
from echo_p2p.wire import encode

HERE = Path(__file__).parent
DEADLINE_S = 30.0


def in_trio(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(**fixtures: Any) -> None:
        async def bounded() -> None:
            with trio.fail_after(180):
                await test(**fixtures)

        trio.run(bounded)

    return run


@asynccontextmanager
async def open_child(stderr_line: Callable[[str], None] | None = None) -> AsyncIterator[Child]:
    async with child_process(
        "pipes_child", name="the child", env={"PYTHONPATH": str(HERE)}, stderr_line=stderr_line
    ) as child:
        yield child


async def tell(child: Child, what: str, deadline_s: float = DEADLINE_S) -> bytes:
    return (await child.call(Do(what), Echo, deadline_s=deadline_s)).data


@in_trio
async def test_messages_of_every_size_come_back() -> None:
    async with open_child() as child:
        for size in (0, 1, 255, 1 << 16, (1 << 18) + 1, 8 << 20):
            data = os.urandom(size)
            assert (await child.call(Echo(data), Echo, deadline_s=DEADLINE_S)).data == data


@in_trio
async def test_many_messages_may_be_under_way() -> None:
    async with open_child() as child:
        for number in range(100):
            await child.send(Echo(bytes([number])))
        for number in range(100):
            assert (await child.receive(Echo)).data == bytes([number])


@in_trio
async def test_what_libraries_print_goes_to_stderr_and_not_into_the_pipe() -> None:
    lines: list[str] = []
    async with open_child(lines.append) as child:
        assert await tell(child, "print") == b""
        assert await tell(child, "pid") == str(child.pid).encode()
    printed = {"printed by a program", "written to descriptor 1"}
    assert printed <= set(lines)


@in_trio
async def test_a_child_that_dies_is_quoted() -> None:
    async with open_child() as child:
        with pytest.raises(ProcessError) as caught:
            await tell(child, "raise")
        assert "the child ended with code 1" in str(caught.value)
        assert "ValueError: as I was told" in str(caught.value)
        with pytest.raises(ProcessError, match="still owes the answer to Do"):
            await tell(child, "pid")
    async with open_child() as child:
        with pytest.raises(ProcessError, match=r"code 7\.(?s:.*)a line\nno newline at the end"):
            await tell(child, "last words")


@in_trio
async def test_a_dead_child_is_noticed_when_written_to() -> None:
    async with open_child() as child:
        child.kill()
        with pytest.raises(ProcessError, match="the child ended with code -9"):
            while True:
                await child.send(Echo(bytes(1 << 20)))


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("huge frame", "sent a frame of 1073741825 bytes"),
        ("garbage", "sent 3 bytes that are no Echo"),
        ("half an answer", "ended with code 0"),
    ],
)
@in_trio
async def test_broken_framing_is_a_process_error(what: str, why: str) -> None:
    async with open_child() as child:
        with pytest.raises(ProcessError, match=why):
            await tell(child, what)


@in_trio
async def test_a_message_of_another_type_is_a_process_error() -> None:
    async with open_child() as child:
        with pytest.raises(ProcessError, match="that are no Do"):
            await child.call(Echo(b"x"), Do, deadline_s=DEADLINE_S)


@in_trio
async def test_a_hanging_child_costs_a_deadline_and_is_not_asked_again() -> None:
    async with open_child() as child:
        with pytest.raises(ProcessError, match=r"did not answer Do in 1 s"):
            await tell(child, "hang", deadline_s=1.0)
        with pytest.raises(ProcessError, match="still owes the answer to Do; replace it"):
            await tell(child, "pid")
        child.kill()


@in_trio
async def test_a_cancelled_call_is_the_last() -> None:
    async with open_child() as child:
        with trio.CancelScope() as scope:
            scope.cancel()
            await tell(child, "pid")
        with pytest.raises(ProcessError, match="replace it"):
            await tell(child, "pid")


@in_trio
async def test_a_cancelled_receive_loses_nothing() -> None:
    async with open_child() as child:
        data = os.urandom(4 << 20)
        await child.send(Echo(b"first"))
        await child.send(Echo(data))
        received: list[bytes] = []
        while len(received) < 2:
            with trio.CancelScope() as scope:
                # every wait is cut off once it began, wherever in a frame that is
                trio.lowlevel.current_trio_token().run_sync_soon(scope.cancel)
                received.append((await child.receive(Echo)).data)
        assert received == [b"first", data]


@in_trio
async def test_a_child_that_closes_its_pipe_and_lives_on_is_told_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pipes, "_STOP_GRACE_S", 0.2)
    async with open_child() as child:
        with pytest.raises(ProcessError, match="the child closed its pipe, and goes on"):
            await tell(child, "close")
    assert not psutil.pid_exists(child.pid)


@in_trio
async def test_the_block_ends_the_child_willing_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_child() as child:
        await tell(child, "pid")
    assert not psutil.pid_exists(child.pid)
    monkeypatch.setattr(pipes, "_STOP_GRACE_S", 0.2)
    async with open_child() as child:
        await tell(child, "deaf")
    assert not psutil.pid_exists(child.pid)


@in_trio
@pytest.mark.skipif(sys.platform != "linux", reason="its group is ended on Linux")
async def test_what_a_child_started_ends_with_it() -> None:
    async with open_child() as child:
        started = [psutil.Process(int(await tell(child, "leave one behind")))]
    async with open_child() as child:
        with pytest.raises(ProcessError, match="ended with code 7") as caught:
            await tell(child, "leave one behind and die")
    left = int(str(caught.value).split("\n")[-1])
    if psutil.pid_exists(left):
        started.append(psutil.Process(left))
    _, alive = psutil.wait_procs(started, timeout=60)
    assert all(process.status() == psutil.STATUS_ZOMBIE for process in alive)


@in_trio
async def test_a_copy_of_a_child_says_nothing() -> None:
    async with open_child() as child:
        assert await tell(child, "fork") == b"from the child"
        assert await tell(child, "pid") == str(child.pid).encode()


@in_trio
async def test_an_error_of_the_block_comes_out_as_itself() -> None:
    with pytest.raises(KeyError, match="mine"):
        async with open_child() as child:
            raise KeyError("mine")
    assert not psutil.pid_exists(child.pid)


@in_trio
async def test_a_cancelled_block_ends_the_child() -> None:
    with trio.CancelScope() as scope:
        async with open_child() as child:
            await tell(child, "pid")
            scope.cancel()
            await tell(child, "hang")
    assert scope.cancelled_caught
    assert not psutil.pid_exists(child.pid)


def test_a_child_ends_when_its_parent_is_killed() -> None:
    code = (
        "import trio\n"
        "from pipes_child import Do, Echo\n"
        "from echo_p2p.pipes import child_process\n"
        "async def main():\n"
        "    async with child_process('pipes_child', name='it') as child:\n"
        "        await child.call(Do('pid'), Echo, deadline_s=30)\n"
        "        print(child.pid, flush=True)\n"
        "        await trio.sleep_forever()\n"
        "trio.run(main)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(HERE)},
    ) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
        _, alive = psutil.wait_procs([child], timeout=20)
        assert all(process.status() == psutil.STATUS_ZOMBIE for process in alive)


def test_a_child_at_work_ends_with_its_parent() -> None:
    body = encode(Do("hang"))
    with subprocess.Popen(
        [sys.executable, "-m", "pipes_child"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
    ) as child:
        assert child.stdin is not None
        child.stdin.write(len(body).to_bytes(4, "big") + body)
        child.stdin.close()
        try:
            assert child.wait(60) == 0
        finally:
            child.kill()
