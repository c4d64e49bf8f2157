"""Peers in another process: stopped, resumed, killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from net_support import ECHO, in_trio, until

from echo_p2p.errors import DeadlineError, NetError
from echo_p2p.identity import Identity
from echo_p2p.net import tuning
from echo_p2p.net.host import Peer, open_peer

SERVER = """
import trio
from echo_p2p.identity import Identity
from echo_p2p.net.host import open_peer

async def echo(remote, body):
    if body == b"wait":
        print("waiting", flush=True)
        await trio.sleep_forever()
    return body

async def main():
    async with open_peer(Identity.create(), ["/ip4/127.0.0.1/tcp/0"]) as peer:
        peer.serve("/test/echo/1", echo, max_request=1 << 23, deadline_s=600)
        print(peer.addresses[0], flush=True)
        await trio.sleep_forever()

trio.run(main)
"""


@asynccontextmanager
async def other_process() -> AsyncIterator[tuple[Peer, str, subprocess.Popen[bytes]]]:
    """A client here, connected to a server in a process of its own."""
    child = subprocess.Popen(  # noqa: ASYNC220 - started, not waited for
        [sys.executable, "-c", SERVER], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        async with open_peer(Identity.create(), []) as client:
            address = (await trio.to_thread.run_sync(child.stdout.readline)).decode().strip()
            yield client, await client.connect([address], deadline_s=10), child
    finally:
        child.kill()
        _, errors = child.communicate()
    assert errors == b""  # libp2p keeps quiet


async def ask(client: Peer, peer_id: str, body: bytes, deadline_s: float) -> bytes:
    return await client.request(peer_id, ECHO, body, max_reply=1 << 23, deadline_s=deadline_s)


@in_trio
async def test_a_stopped_peer_is_late_and_serves_again_when_it_goes_on():
    async with other_process() as (client, peer_id, child):
        assert await ask(client, peer_id, b"one", 10) == b"one"
        child.send_signal(signal.SIGSTOP)
        for body in (b"two", b"x" * (4 << 20)):  # the second does not even fit the windows
            with pytest.raises(DeadlineError, match="did not answer"):
                await ask(client, peer_id, body, 0.3)
        assert client.connected() == {peer_id}
        child.send_signal(signal.SIGCONT)
        assert await ask(client, peer_id, b"three", 10) == b"three"
        assert await ask(client, peer_id, b"y" * (4 << 20), 10) == b"y" * (4 << 20)


@in_trio
async def test_a_peer_that_stays_stopped_is_let_go(monkeypatch):
    monkeypatch.setattr(tuning, "PING_S", 0.1)
    async with other_process() as (client, peer_id, child):
        child.send_signal(signal.SIGSTOP)
        with pytest.raises(NetError) as caught:
            await ask(client, peer_id, b"one", 600)
        assert not isinstance(caught.value, DeadlineError)
        await until(lambda: not client.connected())


@in_trio
async def test_leaving_does_not_wait_for_a_stopped_peer():
    async with other_process() as (client, peer_id, child):
        async with client.stream(peer_id, ECHO, deadline_s=10) as stream:
            child.send_signal(signal.SIGSTOP)
            with trio.move_on_after(0.3):
                await stream.send(b"x" * (8 << 20))
        left_at = trio.current_time()
    assert trio.current_time() - left_at < 10


@in_trio
async def test_a_killed_peer_is_noticed_at_once():
    async with other_process() as (client, peer_id, child):
        async with trio.open_nursery() as nursery:

            async def pending() -> None:
                with pytest.raises(NetError) as caught:
                    await ask(client, peer_id, b"wait", 600)
                assert not isinstance(caught.value, DeadlineError)

            nursery.start_soon(pending)
            await trio.to_thread.run_sync(child.stdout.readline)
            child.kill()
        await until(lambda: not client.connected())
