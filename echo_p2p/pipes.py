"""Child processes spoken to over their standard input and output.

The engine, the learner, the scorers and the directory are each a `python -m module` that serves a
`ParentPipe`. A frame is a 4-byte big-endian length and a MessagePack message of the types
both sides agreed on. Promises: a child that dies, hangs past a deadline or breaks the framing
raises `ProcessError` in the parent with the tail of its stderr; a child whose parent is gone reads
end-of-file and ends, even in the middle of work, so none is left behind; whatever a library prints
to stdout in the child goes to stderr, never into the pipe.
"""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from queue import SimpleQueue
from typing import IO, BinaryIO, TypeVar

import msgspec
import trio

from echo_p2p.errors import ProcessError, WireError
from echo_p2p.nursery import open_nursery
from echo_p2p.wire import decode, encode

MAX_FRAME_BYTES = 1 << 30
_HEADER = struct.Struct(">I")
_STDERR_LINES = 40
_MAX_LINE_BYTES = 4096
_STOP_GRACE_S = 5.0

T = TypeVar("T")


class Child:
    """The parent's side of one child process. One task may send while another receives; two that
    do the same need a lock."""

    def __init__(self, process: trio.Process, name: str) -> None:
        self.name = name
        self._process = process
        self._stderr: deque[str] = deque(maxlen=_STDERR_LINES)
        self._stderr_ended = trio.Event()
        self._buffer = bytearray()
        self._owed = ""
        self._reaped = False

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        """End it now, and what it started: it hangs, or nobody wants its answer any more."""
        if not self._reaped:  # so its number, and its group's, is still its own
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except PermissionError:  # macOS, of a group whose leader is a zombie
                self._process.kill()

    async def _end(self) -> None:
        """Wait until it has ended, and end what it started and left behind.

        The latter where a process can be awaited without being reaped, which is on Linux.
        """
        if not self._reaped and hasattr(os, "pidfd_open"):
            descriptor = os.pidfd_open(self.pid)
            try:
                await trio.lowlevel.wait_readable(descriptor)
            finally:
                trio.lowlevel.notify_closing(descriptor)
                os.close(descriptor)
            self.kill()
            self._reaped = True  # or nearly, and even if this is cancelled
        await self._process.wait()
        self._reaped = True

    async def send(self, message: msgspec.Struct) -> None:
        """Write one message."""
        body = encode(message)
        stdin = self._process.stdin
        assert stdin is not None
        try:
            await stdin.send_all(_HEADER.pack(len(body)) + body)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise await self._died() from error

    async def receive(self, kind: type[T]) -> T:
        """Read one message. Cancelled, it loses nothing: the next `receive` reads it."""
        await self._fill(_HEADER.size)
        size: int = _HEADER.unpack_from(self._buffer)[0]
        if size > MAX_FRAME_BYTES:
            raise ProcessError(f"{self.name} sent a frame of {size} bytes.")
        end = _HEADER.size + size
        await self._fill(end)
        body = bytes(self._buffer[_HEADER.size : end])
        del self._buffer[:end]
        try:
            return decode(body, kind)
        except WireError as error:
            raise ProcessError(f"{self.name} sent {error.message}") from error

    async def call(self, message: msgspec.Struct, kind: type[T], *, deadline_s: float) -> T:
        """Send, then receive the answer, within a deadline.

        A call that ends without its answer, by deadline or cancellation, is the last: the next
        would take that answer for its own.
        """
        if self._owed:
            raise ProcessError(f"{self.name} still owes the answer to {self._owed}; replace it.")
        self._owed = type(message).__name__
        with trio.move_on_after(deadline_s):
            await self.send(message)
            answer = await self.receive(kind)
            self._owed = ""
            return answer
        raise ProcessError(
            f"{self.name} (process {self.pid}) did not answer {type(message).__name__} "
            f"in {deadline_s:.0f} s."
        )

    async def _fill(self, size: int) -> None:
        """Read until the buffer holds at least `size` bytes."""
        stdout = self._process.stdout
        assert stdout is not None
        while len(self._buffer) < size:
            try:
                data = await stdout.receive_some(1 << 18)
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                raise await self._died() from error
            if not data:
                raise await self._died()
            self._buffer += data

    async def _died(self) -> ProcessError:
        with trio.move_on_after(_STOP_GRACE_S):
            await self._end()
            await self._stderr_ended.wait()
        code = self._process.returncode if self._reaped else None
        what = "closed its pipe, and goes on" if code is None else f"ended with code {code}"
        tail = "\n".join(self._stderr)
        return ProcessError(f"{self.name} {what}." + (f"\n{tail}" if tail else ""))

    async def _drain_stderr(self, sink: Callable[[str], None] | None) -> None:
        stderr = self._process.stderr
        assert stderr is not None
        rest = b""
        async for data in stderr:
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self._take_line(line, sink)
            rest = rest[-_MAX_LINE_BYTES:]
        if rest:
            self._take_line(rest, sink)
        self._stderr_ended.set()

    def _take_line(self, line: bytes, sink: Callable[[str], None] | None) -> None:
        text = line[-_MAX_LINE_BYTES:].decode(errors="replace")
        self._stderr.append(text)
        if sink is not None:
            sink(text)

    async def _stop(self) -> None:
        stdin = self._process.stdin
        assert stdin is not None
        with trio.CancelScope(shield=True):
            await stdin.aclose()
            with trio.move_on_after(_STOP_GRACE_S):
                await self._end()
            if not self._reaped:
                self.kill()
                await self._end()


@asynccontextmanager
async def child_process(
    module: str,
    *args: str,
    name: str,
    env: Mapping[str, str] | None = None,
    inherit: Collection[str] | None = None,
    stderr_line: Callable[[str], None] | None = None,
) -> AsyncIterator[Child]:
    """Run `python -m module args...` for the length of the block.

    At the end its stdin is closed; if it has not ended five seconds later it is killed.

    Args:
        name: what error messages call it ("engine", "learner").
        env: added to our own environment.
        inherit: the variables of our own environment that it gets; None is all.
        stderr_line: called with each line the child writes to stderr.
    """
    ours = {name: value for name, value in os.environ.items() if inherit is None or name in inherit}
    process = await trio.lowlevel.open_process(
        [sys.executable, "-m", module, *args],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**ours, **(env or {})},
        start_new_session=True,  # its own group; a Ctrl-C at the terminal is ours to handle
    )
    child = Child(process, name)
    async with open_nursery() as nursery:
        nursery.start_soon(child._drain_stderr, stderr_line)
        try:
            yield child
        finally:
            await child._stop()
            nursery.cancel_scope.cancel()


def read_frame(pipe: IO[bytes]) -> bytes | None:
    """The next frame's body, blocking; None at the end of the pipe, or where framing is lost."""
    header = pipe.read(_HEADER.size)
    if len(header) < _HEADER.size:
        return None
    size = _HEADER.unpack(header)[0]
    if size > MAX_FRAME_BYTES:  # both ends are ours: the framing is lost, and with it all else
        return None
    body = pipe.read(size)
    return body if len(body) == size else None


def write_frame(pipe: IO[bytes], body: bytes) -> None:
    """Write one frame, blocking; BrokenPipeError if nobody reads any more."""
    pipe.write(_HEADER.pack(len(body)) + body)
    pipe.flush()


def end_group() -> None:
    """End this child and all it started, but for what made a session of its own.

    Does nothing in a process that does not lead its group; one from `child_process` does.
    """
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpgrp(), signal.SIGKILL)


class ParentPipe:
    """The child's side: blocking reads and writes on what were its stdin and stdout.

    Only the process that made it may send. A copy of the process (fork) that comes to it ends: what
    it sent would be taken for the answer to the next command.

    Args:
        outlive_work: at end-of-file, let a command in progress finish; otherwise the process ends
            at once, so that nothing of it is left to disturb the parent's successor.
        ends_group: when it ends for that, what it started ends too (see `end_group`).
    """

    def __init__(self, *, outlive_work: bool = False, ends_group: bool = False) -> None:
        self._owner = os.getpid()
        self._ends_group = ends_group
        self._in: BinaryIO = os.fdopen(os.dup(0), "rb")
        self._out: BinaryIO = os.fdopen(os.dup(1), "wb")
        os.dup2(2, 1)  # prints of libraries go to stderr
        with open(os.devnull, "rb") as null:  # noqa: PTH123 - a descriptor is what is wanted
            os.dup2(null.fileno(), 0)
        self._frames: SimpleQueue[bytes | None] = SimpleQueue()
        self._working = False
        self._outlive_work = outlive_work
        threading.Thread(target=self._read_frames, name="parent", daemon=True).start()

    def receive(self, kind: type[T]) -> T | None:
        """The next message; None when the parent has closed the pipe or is gone."""
        self._working = False
        body = self._frames.get()
        if body is None:
            return None
        self._working = True
        return decode(body, kind)

    @property
    def waiting(self) -> bool:
        """Whether `receive` would return at once."""
        return not self._frames.empty()

    def _read_frames(self) -> None:
        while (body := read_frame(self._in)) is not None:
            self._frames.put(body)
        if (self._working or not self._frames.empty()) and not self._outlive_work:
            if self._ends_group:
                end_group()
            os._exit(0)
        self._frames.put(None)

    def send(self, message: msgspec.Struct) -> None:
        """Write one message; ends the process quietly if the parent is gone."""
        if os.getpid() != self._owner:
            os._exit(0)
        try:
            write_frame(self._out, encode(message))
        except BrokenPipeError:
            os._exit(0)
