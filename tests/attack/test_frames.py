"""Bytes that are no request, and floods: the stream or the request is lost, and nothing else."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import trio
from attack_support import ANSWER_S, GROUP, RUN_ID, Arena, Node
from attacks_on_envelopes import token_changed_after_signing
from attacks_on_leases import with_made_up_lease

from echo_p2p.envelope import seal
from echo_p2p.errors import NetError
from echo_p2p.net.stream import HEADER
from echo_p2p.nursery import open_nursery
from echo_p2p.wire import (
    CONTROL_PROTOCOL,
    MAX_CONTROL_BYTES,
    SWARM_PROTOCOL,
    WATCH_PROTOCOL,
    LeaseRequest,
    Refusal,
    Submission,
    Submit,
    Watch,
    decode,
    encode,
)

PROTOCOLS = (CONTROL_PROTOCOL, SWARM_PROTOCOL, WATCH_PROTOCOL)
STREAMS = 32


async def control(arena: Arena) -> None:
    """On the same connection, an honest answer is accepted."""
    assert await arena.outcome(arena.attacker, await arena.ready(arena.attacker)) == "accepted"


def lease_request(**fields: Any) -> bytes:
    usual: dict[str, Any] = {"run_id": RUN_ID, "version": 0, "groups": 1, "wait_s": 0.0}
    return encode(LeaseRequest(**(usual | fields)))


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"\xc1garbage", "bad_message"),
        (b"\x91" * 100_000, "bad_message"),
        (encode(Submit(envelope=b""))[:-1], "bad_message"),
        (encode(Submission(run_id=RUN_ID, lease_id=bytes(16), version=0, rollouts=())),
         "bad_message"),
        (encode(Refusal(code="busy", sentence="")), "bad_message"),
        (lease_request(groups=-1), "bad_message"),
        (lease_request(groups=10**9), "bad_message"),
        (lease_request(wait_s=float("nan")), "bad_message"),
        (lease_request(wait_s=1e9), "bad_message"),
        (lease_request(run_id="another-run"), "wrong_run"),
        (encode(Submit(envelope=bytes(MAX_CONTROL_BYTES))), "too_large"),
    ],
    ids=["garbage", "nested", "cut-short", "unsigned", "reply", "groups-negative", "groups-many",
         "wait-nan", "wait-forever", "another-run", "too-large"],
)  # fmt: skip
def test_what_is_no_request_is_refused(arena: Arena, body: bytes, code: str) -> None:
    async def scene(node: Node) -> None:
        before = await arena.counts()
        reply = await node.peer.request(
            node.hub_id, CONTROL_PROTOCOL, body, max_reply=4096, deadline_s=ANSWER_S
        )
        assert decode(reply, Refusal).code == code
        await control(arena)
        assert await arena.counts() - before == Counter(accepted=GROUP)

    arena.run(scene, arena.attacker)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    "data",
    [
        HEADER.pack(2**32 - 1) + bytes(1000),
        HEADER.pack(0),
        HEADER.pack(1000) + bytes(10),
        HEADER.pack(100) + bytes(100),
        HEADER.pack(100)[:3],
    ],
    ids=["4-gib", "empty", "unfinished", "zeros", "half-a-header"],
)
def test_a_broken_stream_breaks_nothing_else(arena: Arena, protocol: str, data: bytes) -> None:
    async def scene(node: Node) -> None:
        async with node.peer.stream(node.hub_id, protocol, deadline_s=ANSWER_S) as stream:
            await stream._muxed.write(data)
            await control(arena)
        assert node.hub_id in node.peer.connected()
        await control(arena)

    arena.run(scene, arena.attacker)


def test_a_frame_of_4_gib_is_refused_unread(arena: Arena) -> None:
    async def scene(node: Node) -> None:
        async with node.peer.stream(node.hub_id, CONTROL_PROTOCOL, deadline_s=ANSWER_S) as stream:
            await stream._muxed.write(HEADER.pack(2**32 - 1))
            reply = await stream.receive(4096, deadline_s=ANSWER_S)
            assert decode(reply, Refusal).code == "too_large"
            with pytest.raises(NetError):
                await stream.receive(4096, deadline_s=ANSWER_S)
        await control(arena)

    arena.run(scene, arena.attacker)


def test_another_run_cannot_be_watched(arena: Arena) -> None:
    async def scene(node: Node) -> None:
        async with node.peer.stream(node.hub_id, WATCH_PROTOCOL, deadline_s=ANSWER_S) as stream:
            await stream.send(encode(Watch(run_id="another-run")))
            with pytest.raises(NetError):
                await stream.receive(4096, deadline_s=ANSWER_S)
        assert not arena.hub.endpoints.in_session
        await control(arena)

    arena.run(scene, arena.attacker)


def test_a_flood_of_bad_submissions_does_not_keep_out_an_honest_node(arena: Arena) -> None:
    async def scene() -> None:
        key = arena.attacker.identity
        answered = await arena.ready(arena.attacker)
        good = seal(key, answered)
        assert (await arena.attacker.send(good)).accepted
        bad = {
            "duplicate": good,
            "unknown_lease": seal(key, with_made_up_lease(answered)),
            "bad_signature": token_changed_after_signing(good, arena),
            "bad_envelope": bytes(1 << 20),
        }
        before, told = await arena.counts(), Counter[str]()
        over = trio.Event()

        async def flood(envelope: bytes) -> None:
            while not over.is_set():
                told[(await arena.attacker.send(envelope)).code] += GROUP

        async with open_nursery() as nursery:
            for envelope in list(bad.values()) * (STREAMS // len(bad)):
                nursery.start_soon(flood, envelope)
            for _ in range(3):
                (lease,) = await arena.honest.leases(1)
                flooded = told.total()
                (answer,) = await arena.answers([lease])
                assert await arena.outcome(arena.honest, answer) == "accepted"
                assert told.total() > flooded  # it was going on all the while
            over.set()
        assert set(told) == set(bad)
        # and none of it was lost count of
        assert await arena.counts() - before == told + Counter(accepted=3 * GROUP)

    arena.run(scene)
