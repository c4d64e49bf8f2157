"""Two real hosts on loopback, for the tests of echo_p2p.net."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio

from echo_p2p.identity import Identity
from echo_p2p.net.host import Peer, Remote, open_peer

ANY_PORT = "/ip4/127.0.0.1/tcp/0"
ECHO = "/test/echo/1"


def in_trio(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a test in trio, for at most a minute."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        async def bounded() -> None:
            with trio.fail_after(180):
                await test(*args, **kwargs)

        trio.run(bounded)

    return run


async def echo(_: Remote, body: bytes) -> bytes:
    return body


@asynccontextmanager
async def two_peers(**options: Any) -> AsyncIterator[tuple[Peer, Peer]]:
    """A client connected to a server that answers ECHO; both listen."""
    async with (
        open_peer(Identity.create(), [ANY_PORT]) as client,
        open_peer(Identity.create(), [ANY_PORT], **options) as server,
    ):
        server.serve(ECHO, echo, max_request=1 << 20, deadline_s=10)
        await client.connect(server.addresses, deadline_s=10)
        yield client, server


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that other tasks bring about."""
    while not condition():  # noqa: ASYNC110 - what is waited for sets no event
        await trio.sleep(0.01)
