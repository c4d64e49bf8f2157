"""Clients that are slow on purpose are let go: in their headers, their body, and their reading."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from echo_hub.api import guards, server
from echo_hub.api.guards import Guards
from echo_hub.api.security import Doorman
from echo_hub.config.dashboard import DashboardSection

SHORT_S = 0.3
NEVER_S = 60.0  # only what hangs takes so long
ENDLESS = 1 << 30


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deadlines that a test can wait for."""
    monkeypatch.setattr(server, "HEADERS_S", SHORT_S)
    monkeypatch.setattr(server, "WRITE_S", SHORT_S)
    monkeypatch.setattr(guards, "BODY_S", SHORT_S)


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Reads what comes, and answers with more than anybody can read, or `done`."""
    if scope["type"] != "http":
        return
    if scope["path"] == "/robots.txt":  # an export, say, takes its time before it listens at all
        await trio.sleep(10 * SHORT_S)
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": []})
    piece, much = b"x" * 65536, ENDLESS if scope["path"] == "/login" else 0
    for _ in range(much // len(piece)):
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b"done"})


@asynccontextmanager
async def client(root: Path) -> AsyncIterator[trio.SocketStream]:
    guarded = Guards(app, doorman=Doorman(None), names=(), public=False)
    async with server.serving(guarded, DashboardSection(port=0), root) as url:
        stream = await trio.open_tcp_stream("127.0.0.1", int(url.rpartition(":")[2]))
        async with stream:
            yield stream


async def all_that_comes(stream: trio.SocketStream) -> bytes:
    """What the server sends until it ends the connection."""
    told = b""
    with trio.fail_after(NEVER_S):
        try:
            async for piece in stream:
                told += piece
        except trio.BrokenResourceError:  # what was still on its way was not read
            pass
    return told


async def trickle(stream: trio.SocketStream, piece: bytes) -> None:
    """Send a little, again and again, as long as the server listens."""
    with trio.fail_after(NEVER_S):
        try:
            while True:
                await stream.send_all(piece)
                await trio.sleep(SHORT_S / 10)
        except trio.BrokenResourceError:
            return


def run(body: Callable[[], Awaitable[None]]) -> None:
    trio.run(body)


def test_who_says_nothing_is_let_go(tmp_path: Path) -> None:
    async def body() -> None:
        async with client(tmp_path) as stream:
            assert await all_that_comes(stream) == b""

    run(body)


def test_headers_that_never_end_are_not_waited_for(tmp_path: Path) -> None:
    async def body() -> None:
        async with client(tmp_path) as stream:
            await stream.send_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
            await trickle(stream, b"X-More: x\r\n")

    run(body)


def test_a_body_that_never_ends_is_refused(tmp_path: Path) -> None:
    async def body() -> None:
        async with client(tmp_path) as stream:
            head = (
                b"POST /api/v1/session HTTP/1.1\r\nHost: localhost\r\nContent-Length: 60000\r\n\r\n"
            )
            await stream.send_all(head + b"{")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trickle, stream, b" ")
                told = await all_that_comes(stream)
                nursery.cancel_scope.cancel()
            assert told.startswith(b"HTTP/1.1 408")

    run(body)


def test_who_does_not_read_is_let_go(tmp_path: Path) -> None:
    async def body() -> None:
        async with client(tmp_path) as stream:
            await stream.send_all(b"GET /login HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await trio.sleep(3 * SHORT_S)  # it sends, until nothing more fits
            assert len(await all_that_comes(stream)) < ENDLESS

    run(body)


def test_who_is_in_time_is_answered(tmp_path: Path) -> None:
    async def body() -> None:
        async with client(tmp_path) as stream:
            ask = b"POST /api/v1/session HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n"
            await stream.send_all(ask + b"{}")
            assert b"done" in await all_that_comes(stream)

    run(body)


def test_an_answer_may_take_longer_than_any_of_it(tmp_path: Path) -> None:
    async def body() -> None:
        async with client(tmp_path) as stream:
            await stream.send_all(b"GET /robots.txt HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b"done" in await all_that_comes(stream)

    run(body)
