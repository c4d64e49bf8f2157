"""Any bytes on a stream of a live host: they never end it, nor what honest peers are doing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from net_support import two_peers

from echo_p2p.errors import NetError
from echo_p2p.net import rpc
from echo_p2p.net.host import Peer, Remote
from echo_p2p.wire import (
    CONTROL_PROTOCOL,
    Done,
    HubRequest,
    LatestRequest,
    Message,
    Refusal,
    decode,
    encode,
)

MAX_REQUEST = 4096


class Live:
    """A client and a server in a trio thread of their own, for tests that are plain functions."""

    def __init__(self) -> None:
        self._token: trio.lowlevel.TrioToken
        self._ready = threading.Event()
        self._stop: trio.Event
        self._thread = threading.Thread(target=trio.run, args=(self._serve,))

    async def _serve(self) -> None:
        self._token, self._stop = trio.lowlevel.current_trio_token(), trio.Event()

        async def answer(remote: Remote, message: Message) -> Message:
            return Done()

        async with two_peers() as (self.client, self.server):
            rpc.answer(
                self.server,
                CONTROL_PROTOCOL,
                HubRequest,
                answer,
                deadline_s=0.2,
                max_request=MAX_REQUEST,
            )
            self._ready.set()
            await self._stop.wait()

    def __enter__(self) -> Live:
        self._thread.start()
        assert self._ready.wait(30)
        return self

    def __exit__(self, *_: object) -> None:
        trio.from_thread.run_sync(self._stop.set, trio_token=self._token)
        self._thread.join(30)
        assert not self._thread.is_alive()

    def run(self, function: Any, *args: Any) -> Any:
        return trio.from_thread.run(
            function, self.client, self.server, *args, trio_token=self._token
        )


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with Live() as live:
        yield live


async def throw(client: Peer, server: Peer, data: bytes, *, hang_up: bool) -> list[bytes]:
    """Put bytes on a stream, without frames; the frames that come back until it ends."""
    replies = []
    async with client.stream(server.peer_id, CONTROL_PROTOCOL, deadline_s=5) as stream:
        try:
            await stream._muxed.write(data)
            if hang_up:
                await stream._muxed.close()
            while True:
                replies.append(await stream.receive(1 << 20, deadline_s=5))
        except NetError:
            return replies


async def honest(client: Peer, server: Peer) -> Message:
    return await rpc.ask(
        client, server.peer_id, CONTROL_PROTOCOL, LatestRequest(run_id="a"), Done, deadline_s=5
    )


def frame(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


FUZZ = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


async def _throw_and_hang_up(client: Peer, server: Peer, data: bytes) -> list[bytes]:
    return await throw(client, server, data, hang_up=True)


async def _throw_and_wait(client: Peer, server: Peer, data: bytes) -> list[bytes]:
    return await throw(client, server, data, hang_up=False)


@FUZZ
@given(data=st.binary(max_size=3 * MAX_REQUEST))
def test_random_bytes(live, data):
    for reply in live.run(_throw_and_hang_up, data):
        decode(reply, Done | Refusal)
    assert live.run(honest) == Done()


@FUZZ
@given(bodies=st.lists(st.binary(min_size=1, max_size=300), max_size=5))
def test_whole_frames_of_anything_are_each_answered(live, bodies):
    replies = live.run(_throw_and_hang_up, b"".join(map(frame, bodies)))
    assert len(replies) == len(bodies)
    for reply in replies:
        decode(reply, Done | Refusal)
    assert live.run(honest) == Done()


@FUZZ
@given(size=st.one_of(st.just(0), st.integers(MAX_REQUEST + 1, 2**32 - 1)), body=st.binary())
def test_sizes_that_are_not_allowed(live, size, body):
    replies = live.run(_throw_and_hang_up, size.to_bytes(4, "big") + body)
    codes = [decode(reply, Refusal).code for reply in replies]
    assert codes in ([], ["bad_message"] if size == 0 else ["too_large"])
    assert live.run(honest) == Done()


@pytest.mark.parametrize("kept", [1, 3, 4, 5, 20])
def test_a_frame_that_never_gets_whole_ends_its_stream_by_the_deadline(live, kept, monkeypatch):
    monkeypatch.setattr("echo_p2p.net.tuning.IDLE_S", 0.2)
    data = frame(encode(LatestRequest(run_id="a")))
    assert live.run(_throw_and_wait, data[:kept]) == []
    assert live.run(honest) == Done()
