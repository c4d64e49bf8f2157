"""Limits and priorities of real peers. Only upper bounds are timed: load cannot break those."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from net_support import ANY_PORT, ECHO, echo, in_trio

from echo_p2p.errors import DeadlineError
from echo_p2p.identity import Identity
from echo_p2p.net.bucket import BURST_S, Bucket, quantum_of
from echo_p2p.net.host import Peer, Remote, open_peer
from echo_p2p.rates import Limits
from echo_p2p.wire import SWARM_PROTOCOL

CHUNK = 300_000
RATE = 400_000  # bytes/s


async def give_chunk(_: Remote, body: bytes) -> bytes:
    return body[:1] * CHUNK


@asynccontextmanager
async def serving(
    *askers: Limits, server: Limits | None = None
) -> AsyncIterator[tuple[Peer, list[Peer]]]:
    """One that gives chunks, and some that are connected to it."""
    async with open_peer(Identity.create(), [ANY_PORT], limits=server) as giver:
        giver.serve(SWARM_PROTOCOL, give_chunk, max_request=1 << 16, deadline_s=60)
        giver.serve(ECHO, echo, max_request=1 << 20, deadline_s=60)
        async with trio.open_nursery() as nursery:
            started: list[Peer] = []

            async def ask(limits: Limits, task_status: trio.TaskStatus = trio.TASK_STATUS_IGNORED):
                async with open_peer(Identity.create(), [], limits=limits) as asker:
                    await asker.connect(giver.addresses, deadline_s=30)
                    started.append(asker)
                    task_status.started()
                    await trio.sleep_forever()

            for limits in askers:
                await nursery.start(ask, limits)
            yield giver, started
            nursery.cancel_scope.cancel()


async def get_chunk(asker: Peer, giver: Peer, mark: bytes = b"c") -> None:
    reply = await asker.request(giver.peer_id, SWARM_PROTOCOL, mark, max_reply=CHUNK, deadline_s=50)
    assert reply == mark * CHUNK


@pytest.mark.parametrize(
    ("server", "asker"),
    [(Limits(upload=RATE), Limits()), (Limits(), Limits(download=RATE))],
    ids=["upload", "download"],
)
@in_trio
async def test_a_limit_holds_for_all_connections_and_streams_together(server, asker):
    """Four chunks at a time: over two connections up, in four streams of one program down."""
    askers = [asker] if asker.download else [asker, asker]
    async with serving(*askers, server=server) as (giver, peers):
        began = time.monotonic()
        async with trio.open_nursery() as nursery:
            for number in range(4):
                nursery.start_soon(get_chunk, peers[number % len(peers)], giver)
        took = time.monotonic() - began
        assert RATE * (took + BURST_S) + 2 * quantum_of(RATE) >= 4 * CHUNK


@in_trio
async def test_requests_do_not_wait_behind_chunks_that_wait_for_a_limit():
    async with serving(Limits(), server=Limits(upload=RATE)) as (giver, (asker,)):
        whole = trio.Event()

        async def chunk() -> None:
            await get_chunk(asker, giver)
            whole.set()

        async with trio.open_nursery() as nursery:
            for _ in range(3):  # over two seconds of them
                nursery.start_soon(chunk)
            for number in range(10):
                body = b"%d" % number
                assert body == await asker.request(
                    giver.peer_id, ECHO, body, max_reply=100, deadline_s=50
                )
            overtaken = not whole.is_set()
            nursery.cancel_scope.cancel()
        assert overtaken


@in_trio
async def test_a_limit_of_zero_holds_chunks_back_and_nothing_else():
    async with serving(Limits(), server=Limits(upload=0)) as (giver, (asker,)):
        with pytest.raises(DeadlineError):
            await asker.request(
                giver.peer_id, SWARM_PROTOCOL, b"c", max_reply=CHUNK, deadline_s=0.5
            )
        body = b"x" * (1 << 19)
        assert body == await asker.request(
            giver.peer_id, ECHO, body, max_reply=1 << 20, deadline_s=50
        )


@in_trio
async def test_a_chunk_given_up_gives_its_turns_to_the_others():
    """What was reset is not sent: all that is given up here would take a minute."""
    async with serving(Limits(), server=Limits(upload=RATE)) as (giver, (asker,)):
        for _ in range(80):
            with trio.move_on_after(0.03):
                await get_chunk(asker, giver)
        await get_chunk(asker, giver, b"d")


@in_trio
async def test_chunks_come_whole_with_limits_on_both_sides_and_streams_used_again():
    limits = Limits(upload=4 * RATE, download=3 * RATE)
    async with serving(limits, server=limits) as (giver, (asker,)):
        for number in range(5):
            await get_chunk(asker, giver, b"%d" % number)


@pytest.mark.parametrize("least", [0, RATE], ids=["none", "slow"])
@in_trio
async def test_a_limit_that_is_lifted_lets_those_go_who_wait(least):
    async with serving(Limits(), server=Limits(upload=least)) as (giver, (asker,)):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(get_chunk, asker, giver)
            nursery.start_soon(get_chunk, asker, giver)
            await asker.request(giver.peer_id, ECHO, b"x", max_reply=9, deadline_s=30)
            giver.limit(Limits())
        assert giver.limits == Limits()
        sent, received = giver.moved_bytes[0], asker.moved_bytes[1]
        assert 2 * CHUNK < received <= sent < 2.1 * CHUNK


@pytest.mark.parametrize("side", ["upload", "download"])
@in_trio
async def test_a_limit_that_is_set_later_holds_for_open_connections(side):
    async with serving(Limits()) as (giver, (asker,)):
        await get_chunk(asker, giver)
        limited = giver if side == "upload" else asker
        limited.limit(Limits(**{side: 4 * RATE}))
        limited.limit(Limits(**{side: RATE}))
        began = time.monotonic()
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(get_chunk, asker, giver)
        took = time.monotonic() - began
        assert RATE * (took + BURST_S) + 2 * quantum_of(RATE) >= 3 * CHUNK
        limited.limit(Limits())
        await get_chunk(asker, giver)


def test_another_rate_does_not_forgive_what_is_owed():
    bucket = Bucket(1000, 0.0)
    bucket.spend(500, 0.0)
    bucket.change(100, 0.0)
    assert bucket.delay(0.0) == pytest.approx(5.0)
    bucket.change(1000, 1.0)
    assert bucket.delay(1.0) == pytest.approx(0.4)
