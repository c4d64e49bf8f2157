"""The running node's end of its control socket.

Promises: nobody but the user who runs the node is answered (mode 0600, a folder that is the user's
own, and on Linux the kernel's word on who connects); whatever is sent here, by however many at a
time, the node works on: a request is small, comes within a deadline and is decoded strictly.
"""

from __future__ import annotations

import logging
import os
import socket
import struct
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import trio

from echo_node.control.messages import (
    HEADER,
    MAX_REQUEST_BYTES,
    Refused,
    Reply,
    Request,
)
from echo_p2p.errors import ConfigError, EchoError

MOST_CLIENTS = 16
REQUEST_S = 5.0
ANSWER_S = 30.0
BACKLOG = 64

Answer = Callable[[Request], Awaitable[Reply]]

log = logging.getLogger(__name__)


class ControlServer:
    """Answers requests on a socket. `open` it, `serve` in a task, `close` it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._socket: trio.socket.SocketType | None = None
        self._clients = 0

    async def open(self) -> None:
        """Listen; ConfigError if that cannot be."""
        self._path.unlink(missing_ok=True)  # of a node that was killed; we hold the lock
        listener = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o177)
        try:
            await listener.bind(str(self._path))
        except OSError as error:
            listener.close()
            raise ConfigError(f"cannot listen on {self._path}: {error.strerror}.") from error
        finally:
            os.umask(before)
        listener.listen(BACKLOG)
        self._socket = listener

    def close(self) -> None:
        """Stop listening."""
        if self._socket is not None:
            self._socket.close()
            self._path.unlink(missing_ok=True)

    async def serve(self, answer: Answer) -> None:
        """Answer until cancelled."""
        assert self._socket is not None
        async with trio.open_nursery() as nursery:
            while True:
                try:
                    client, _ = await self._socket.accept()
                except OSError as error:  # out of descriptors, or gone already
                    log.warning("a command could not be heard: %s", error)
                    await trio.sleep(0.1)
                    continue
                if self._clients >= MOST_CLIENTS or not _is_ours(client):
                    client.close()
                    continue
                self._clients += 1
                nursery.start_soon(self._attend, trio.SocketStream(client), answer)

    async def _attend(self, stream: trio.SocketStream, answer: Answer) -> None:
        try:
            with trio.move_on_after(REQUEST_S + ANSWER_S):
                async with stream:
                    await _answer_one(stream, answer)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            log.debug("a command went away before its answer came")
        finally:
            self._clients -= 1


@asynccontextmanager
async def listening(path: Path) -> AsyncIterator[ControlServer]:
    """A server that is open for the length of a block."""
    server = ControlServer(path)
    await server.open()
    try:
        yield server
    finally:
        server.close()


async def _answer_one(stream: trio.SocketStream, answer: Answer) -> None:
    reply: Reply
    try:
        with trio.fail_after(REQUEST_S):
            request = await _read_request(stream)
    except trio.TooSlowError:
        return
    except (msgspec.DecodeError, ValueError) as error:
        reply = Refused(message=f"that is no request: {error}.", fix="Upgrade the older program.")
    else:
        if request is None:
            return
        try:
            reply = await answer(request)
        except EchoError as error:
            reply = Refused(message=error.message, fix=error.fix)
    body = msgspec.msgpack.encode(reply)
    await stream.send_all(HEADER.pack(len(body)) + body)


async def _read_request(stream: trio.SocketStream) -> Request | None:
    """None if the other end closed before it had asked."""
    header = await _read(stream, HEADER.size)
    if header is None:
        return None
    size = HEADER.unpack(header)[0]
    if size > MAX_REQUEST_BYTES:
        raise ValueError(f"{size} bytes are too many")
    body = await _read(stream, size)
    return None if body is None else msgspec.msgpack.decode(body, type=Request)


async def _read(stream: trio.SocketStream, size: int) -> bytes | None:
    data = b""
    while len(data) < size:
        more = await stream.receive_some(size - len(data))
        if not more:
            return None
        data += more
    return data


def _is_ours(client: trio.socket.SocketType) -> bool:
    """On Linux the kernel says which user connected; elsewhere the socket's mode has to do."""
    if sys.platform != "linux":
        return True
    size = struct.calcsize("3i")
    credentials = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    _, user, _ = struct.unpack("3i", credentials)
    return user in (os.getuid(), 0)
