"""The way to a hub, step by step, against everything that can stand in it, on real sockets."""

from __future__ import annotations

import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from net_support import ANY_PORT, in_trio
from probed_hub import RUN_ID, probed_hub

from echo_p2p import SPOKEN
from echo_p2p.errors import VersionError
from echo_p2p.identity import Identity
from echo_p2p.net.host import open_peer
from echo_p2p.net.probe import Answer, Probe, Step, find_web, probe
from echo_p2p.net.rpc import ask
from echo_p2p.versions import negotiate
from echo_p2p.wire import (
    MAX_MEASURE_BYTES,
    MEASURE_PROTOCOL,
    VERSIONS_PROTOCOL,
    MeasureReply,
    MeasureRequest,
    Versions,
    VersionsRequest,
)

SOMEBODY = Identity.create().peer_id


async def probed(address: str, *, run: str = RUN_ID) -> tuple[Probe, Answer | None]:
    async with open_peer(Identity.create(), [ANY_PORT]) as peer:
        return await probe(peer, address, run, deadline_s=10)


@asynccontextmanager
async def saying(first: bytes | None) -> AsyncIterator[str]:
    """A program that says something to whoever comes, or (None) nothing at all."""

    async def serve(stream: trio.SocketStream) -> None:
        await stream.receive_some(100)
        if first is None:
            await trio.sleep_forever()
        await stream.send_all(first)

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        port = listener.socket.getsockname()[1]
        yield f"/ip4/127.0.0.1/tcp/{port}/p2p/{SOMEBODY}"
        nursery.cancel_scope.cancel()


@in_trio
async def test_the_whole_way_gives_the_run_and_the_clock() -> None:
    async with probed_hub(clock=lambda: time.time() + 86400) as hub:
        found, answer = await probed(hub.addresses[0])
    assert found.failed is None
    assert answer is not None
    assert answer.run.run_id == RUN_ID
    assert answer.clock_offset_s == pytest.approx(86400, abs=30)


@in_trio
async def test_a_name_that_does_not_resolve() -> None:
    found, _ = await probed(f"/dns4/hub.invalid/tcp/1/p2p/{SOMEBODY}")
    assert found.failed == Step.NAME
    assert "hub.invalid cannot be resolved" in found.cause


@in_trio
async def test_a_port_that_nobody_listens_on() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        found, _ = await probed(f"/ip4/127.0.0.1/tcp/{taken.getsockname()[1]}/p2p/{SOMEBODY}")
    assert (found.failed, found.cause) == (Step.CONNECTION, "connection refused")


@in_trio
async def test_a_log_in_page_is_told_from_another_program() -> None:
    async with saying(b"HTTP/1.1 302 Found\r\nLocation: http://login/\r\n\r\n") as portal:
        found, _ = await probed(portal)
        assert (found.failed, found.web) == (Step.GREETING, True)
        assert found.cause == "a web server answers there"
        assert await find_web([portal], deadline_s=10) == portal
    async with saying(b"SSH-2.0-OpenSSH\r\n") as other:
        found, _ = await probed(other)
        assert (found.failed, found.web) == (Step.GREETING, False)
        assert found.cause == "another program answers there"
        assert await find_web([other], deadline_s=10) == ""
    async with saying(b"") as other:
        assert (await probed(other))[0].cause == "it hangs up"


@in_trio
async def test_a_silent_program_is_given_up() -> None:
    async with saying(None) as silent, open_peer(Identity.create(), [ANY_PORT]) as peer:
        found, _ = await probe(peer, silent, RUN_ID, deadline_s=0.2)
    assert (found.failed, found.cause) == (Step.GREETING, "no answer in 0.2 s")


@in_trio
async def test_another_key_answers() -> None:
    async with probed_hub() as hub:
        address = hub.addresses[0].replace(hub.peer_id, SOMEBODY)
        found, _ = await probed(address)
    assert found.failed == Step.NOISE
    assert "another peer answers there" in found.cause


@in_trio
async def test_a_program_that_speaks_libp2p_and_is_no_hub() -> None:
    async with probed_hub(answers=False) as hub:
        found, _ = await probed(hub.addresses[0])
    assert found.failed == Step.PROTOCOL


@in_trio
async def test_another_run_and_another_signature() -> None:
    async with probed_hub() as hub:
        found, _ = await probed(hub.addresses[0], run="other")
        assert found.failed == Step.RUN
        assert "no such run here" in found.cause
    async with probed_hub(signer=Identity.create()) as hub:
        assert (await probed(hub.addresses[0]))[0].failed == Step.RUN


@in_trio
async def test_a_hub_says_its_protocols_and_measures_what_is_asked() -> None:
    async with probed_hub() as hub, open_peer(Identity.create(), [ANY_PORT]) as peer:
        await peer.connect(hub.addresses, deadline_s=10)
        versions = await ask(
            peer, hub.peer_id, VERSIONS_PROTOCOL, VersionsRequest(), Versions, deadline_s=10
        )
        assert negotiate(versions, upgrade="x") == max(SPOKEN)
        request = MeasureRequest(data=memoryview(bytes(MAX_MEASURE_BYTES)), wanted=1000)
        reply = await ask(peer, hub.peer_id, MEASURE_PROTOCOL, request, MeasureReply, deadline_s=10)
        assert len(reply.data) == 1000


@given(st.frozensets(st.integers(0, 20), min_size=1), st.frozensets(st.integers(0, 20), min_size=1))
def test_the_newest_common_protocol_is_spoken_or_the_older_side_named(
    ours: frozenset[int], theirs: frozenset[int]
) -> None:
    said = Versions(protocols=tuple(theirs), needs="0.9.1")
    if ours & theirs:
        assert negotiate(said, upgrade="x", ours=ours) == max(ours & theirs)
        return
    with pytest.raises(VersionError) as caught:
        negotiate(said, upgrade="pipx upgrade echo-p2p", ours=ours, release="0.1.0")
    if max(theirs) > max(ours):
        assert "needs echo-p2p 0.9.1 or newer, and this is 0.1.0" in caught.value.message
        assert caught.value.fix == "Upgrade it: pipx upgrade echo-p2p"
    else:
        assert "operator to upgrade the hub" in caught.value.fix
