"""The muxer against remotes that do not play by the rules, spoken to in raw frames under Noise."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from libp2p.io.abc import ReadWriteCloser
from libp2p.io.trio import TrioTCPStream
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.peer.id import ID
from net_support import ECHO, in_trio, two_peers, until

from echo_p2p.net import tuning
from echo_p2p.net.channel import Channel, ChannelError, channel_of
from echo_p2p.net.host import Peer
from echo_p2p.net.yamux import (
    ACK,
    DATA,
    FIN,
    GO_AWAY,
    PING,
    RST,
    SYN,
    WINDOW,
    WINDOW_BYTES,
    Decoder,
    Frame,
    Piece,
    ProtocolError,
    encode,
)

FRAMES = st.lists(
    st.tuples(
        st.sampled_from((DATA, WINDOW, PING, GO_AWAY)),
        st.integers(0, 0xFFFF),
        st.integers(0, 2**32 - 1),
        st.integers(0, 300),
    )
)


@given(FRAMES, st.lists(st.integers(1, 64)))
def test_frames_come_out_however_the_bytes_are_cut(frames, cuts):
    bodies = [b"%03d" % n * 100 for n in range(len(frames))]
    wire = b""
    for (kind, flags, stream_id, value), body in zip(frames, bodies, strict=True):
        wire += encode(kind, flags, stream_id, value)
        wire += body[:value] if kind == DATA else b""
    decoder = Decoder()
    items, at = [], 0
    for cut in [*cuts, len(wire)]:
        items += decoder.feed(wire[at : at + cut])
        at += cut
    assert [tuple(item) for item in items if isinstance(item, Frame)] == frames
    expected = b"".join(
        body[: frame[3]] for frame, body in zip(frames, bodies, strict=True) if frame[0] == DATA
    )
    pieces = [item for item in items if isinstance(item, Piece)]
    assert b"".join(piece.data for piece in pieces) == expected
    assert sum(piece.last for piece in pieces) == sum(f[0] == DATA and f[3] > 0 for f in frames)


@given(st.binary(max_size=200))
def test_any_bytes_are_frames_or_a_protocol_error(data):
    with suppress(ProtocolError):
        list(Decoder().feed(data))


@asynccontextmanager
async def raw_channel(client: Peer, server: Peer) -> AsyncIterator[Channel]:
    """A connection by hand: TCP, Noise, the muxer agreed on, and from there our own bytes."""
    port = int(server.addresses[0].split("/")[4])
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    upgrader = client._host.get_network().upgrader
    session = await upgrader.upgrade_security(
        RawConnection(TrioTCPStream(stream), True), True, ID.from_string(server.peer_id)
    )
    await upgrader.muxer_multistream.select_transport(session)
    channel = channel_of(session)
    try:
        yield channel
    finally:
        await channel.close()


async def frames_from(channel: Channel) -> AsyncIterator[Frame]:
    decoder = Decoder()
    while packets := await channel.receive():
        for packet in packets:
            for item in decoder.feed(packet):
                if isinstance(item, Frame):
                    yield item


async def is_closed_on(channel: Channel) -> bool:
    with suppress(ChannelError):
        async for _ in frames_from(channel):
            pass
    return True


@pytest.mark.parametrize(
    "attack",
    [
        b"\x01" + encode(PING, SYN, 0, 1)[1:],  # another version
        b"\x00\x07" + bytes(10),  # no such frame
        encode(WINDOW, SYN, 0, 0),  # stream 0
        encode(WINDOW, SYN, 2, 0),  # a number that is ours to give
        encode(WINDOW, SYN, 1, 0) * 2,  # the same stream twice
        encode(DATA, SYN, 1, WINDOW_BYTES + 1),  # beyond the window
        encode(WINDOW, SYN, 1, 0) + encode(WINDOW, 0, 1, 2**32 - 1),  # a window wider than any
    ],
)
@in_trio
async def test_breaking_the_rules_costs_the_connection_and_nothing_else(attack):
    async with two_peers() as (client, server), raw_channel(client, server) as channel:
        await channel.send(attack)
        assert await is_closed_on(channel)
        reply = await client.request(server.peer_id, ECHO, b"hi", max_reply=9, deadline_s=5)
        assert reply == b"hi"


@in_trio
async def test_a_packet_that_is_not_noise_costs_the_connection():
    async with two_peers() as (client, server), raw_channel(client, server) as channel:
        await channel._socket.send_all(b"\x00\x20" + bytes(32))
        assert await is_closed_on(channel)
        reply = await client.request(server.peer_id, ECHO, b"hi", max_reply=9, deadline_s=5)
        assert reply == b"hi"


@in_trio
async def test_only_so_many_streams_are_let_in():
    async with two_peers() as (client, server), raw_channel(client, server) as channel:
        opened = tuning.MAX_STREAMS + 40
        await channel.send(b"".join(encode(WINDOW, SYN, 2 * n + 1, 0) for n in range(opened)))
        answers: list[Frame] = []
        async for frame in frames_from(channel):
            if frame.kind == WINDOW and frame.flags & (ACK | RST):
                answers.append(frame)
            if len(answers) == opened:
                break
        assert sum(frame.flags == ACK for frame in answers) == tuning.MAX_STREAMS
        assert sum(frame.flags == RST for frame in answers) == 40


@in_trio
async def test_small_frames_cost_what_they_weigh():
    async with two_peers() as (client, server):

        async def deaf(_, stream):
            await trio.sleep_forever()

        server.serve_stream("/deaf/1", deaf)
        async with client.stream(server.peer_id, "/deaf/1", deadline_s=5) as stream:
            (theirs,) = server._host.get_network().get_connections()
            (unread,) = theirs.muxed_conn.streams.values()
            before = unread.credit
            for _ in range(20_000):
                await stream._muxed.write(b"x")
            await until(lambda: unread.credit == before - 20_000)
            assert len(unread._chunks) <= 20_000 // 2048


@in_trio
async def test_who_provokes_answers_and_reads_none_is_cut_off():
    async with two_peers() as (client, server), raw_channel(client, server) as channel:
        await until(lambda: len(server._host.get_network().get_connections()) == 2)
        pings = encode(PING, SYN, 0, 1) * 20_000
        with trio.fail_after(30):
            while len(server._host.get_network().get_connections()) == 2:
                with trio.move_on_after(0.5):
                    try:
                        await channel.send(pings)
                    except ChannelError:
                        break
        reply = await client.request(server.peer_id, ECHO, b"hi", max_reply=9, deadline_s=5)
        assert reply == b"hi"


@in_trio
async def test_a_stream_ends_when_both_sides_have_closed_it():
    async with two_peers() as (client, server):

        async def short(_, stream):
            await stream.receive(10, deadline_s=5)

        server.serve_stream("/short/1", short)
        async with client.stream(server.peer_id, "/short/1", deadline_s=5) as stream:
            await stream.send(b"x")
        (ours,) = client._host.get_network().get_connections()
        (theirs,) = server._host.get_network().get_connections()
        await until(lambda: not ours.muxed_conn.streams and not theirs.muxed_conn.streams)
        assert not ours.streams
        assert not theirs.streams


@in_trio
async def test_half_closed_streams_do_not_stay(monkeypatch):
    monkeypatch.setattr(tuning, "PING_S", 0.05)
    monkeypatch.setattr(tuning, "HALF_CLOSED_S", 0.1)
    async with two_peers() as (client, server):

        async def forever(_, stream):
            await trio.sleep_forever()

        server.serve_stream("/forever/1", forever)
        async with client.stream(server.peer_id, "/forever/1", deadline_s=5):
            pass
        (ours,) = client._host.get_network().get_connections()
        await until(lambda: not ours.muxed_conn.streams)


@in_trio
async def test_windows_grow_on_a_fast_reader_within_their_budget():
    async with two_peers() as (client, server):

        async def swallow(_, stream):
            for _ in range(60):
                await stream.receive(1 << 20, deadline_s=10)
            await stream.send(b"k")

        server.serve_stream("/swallow/1", swallow)
        async with client.stream(server.peer_id, "/swallow/1", deadline_s=5) as stream:
            for _ in range(60):
                await stream.send(bytes(1 << 20))
            assert await stream.receive(1, deadline_s=10) == b"k"
            (theirs,) = server._host.get_network().get_connections()
            targets = [one.target for one in theirs.muxed_conn.streams.values()]
            assert WINDOW_BYTES < max(targets) <= tuning.MAX_WINDOW_BYTES
            assert theirs.muxed_conn._growth == sum(targets) - WINDOW_BYTES * len(targets)
        await until(lambda: theirs.muxed_conn._growth == 0)


@in_trio
async def test_a_silent_peer_is_noticed(monkeypatch):
    """A relay that stops passing bytes on, as a network that goes away does: no FIN, no RST."""
    monkeypatch.setattr(tuning, "PING_S", 0.1)
    async with two_peers() as (client, server), trio.open_nursery() as nursery:
        await client.disconnect(server.peer_id)
        passing = trio.Event()  # set: nothing passes any more
        port = int(server.addresses[0].split("/")[4])

        async def pump(source: trio.SocketStream, sink: trio.SocketStream) -> None:
            async for data in source:
                if passing.is_set():
                    await trio.sleep_forever()
                await sink.send_all(data)

        async def relay(inbound: trio.SocketStream) -> None:
            outbound = await trio.open_tcp_stream("127.0.0.1", port)
            async with outbound, trio.open_nursery() as pumps:
                pumps.start_soon(pump, inbound, outbound)
                pumps.start_soon(pump, outbound, inbound)

        (listener,) = await nursery.start(partial(trio.serve_tcp, relay, 0, host="127.0.0.1"))
        relay_port = listener.socket.getsockname()[1]
        await client.connect(
            [f"/ip4/127.0.0.1/tcp/{relay_port}/p2p/{server.peer_id}"], deadline_s=5
        )
        assert await client.request(server.peer_id, ECHO, b"hi", max_reply=9, deadline_s=5)
        passing.set()
        await until(lambda: not client.connected() and not server.connected())
        nursery.cancel_scope.cancel()


class Relayed(ReadWriteCloser):
    """A connection that is no plain TCP socket, as a relayed one is not."""

    def __init__(self, stream: TrioTCPStream) -> None:
        self.read, self.write, self.close = stream.read, stream.write, stream.close  # type: ignore[method-assign]

    async def read(self, n: int | None = None) -> bytes: ...
    async def write(self, data: bytes) -> None: ...
    async def close(self) -> None: ...
    def get_remote_address(self) -> None: ...


@in_trio
async def test_connections_that_are_no_sockets_go_through_libp2p_s_session():
    async with two_peers() as (client, server):
        await client.disconnect(server.peer_id)
        network = client._host.get_network()
        stream = await trio.open_tcp_stream("127.0.0.1", int(server.addresses[0].split("/")[4]))
        raw = RawConnection(Relayed(TrioTCPStream(stream)), True)
        await network.upgrade_outbound_raw_conn(raw, ID.from_string(server.peer_id))
        body = bytes(range(256)) * 4096
        reply = await client.request(server.peer_id, ECHO, body, max_reply=1 << 20, deadline_s=9)
        assert reply == body
        await server.disconnect(client.peer_id)
        await until(lambda: not client.connected())


@in_trio
async def test_strangers_do_not_fill_the_handshakes():
    """Connections that say nothing are limited by address, and leave room for others."""
    async with two_peers() as (client, server):
        port = int(server.addresses[0].split("/")[4])
        idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(40)]
        try:
            network = server._host.get_network()
            await until(
                lambda: network._handshakes["127.0.0.1"] == tuning.MAX_HANDSHAKES_PER_ADDRESS
            )
            reply = await client.request(server.peer_id, ECHO, b"hi", max_reply=9, deadline_s=5)
            assert reply == b"hi"
        finally:
            for one in idle:
                one.close()
        await until(lambda: not network._handshakes)


def test_flags_are_the_protocol_s():
    assert (SYN, ACK, FIN, RST) == (1, 2, 4, 8)
    assert encode(DATA, FIN, 7, 5) == b"\x00\x00\x00\x04\x00\x00\x00\x07\x00\x00\x00\x05"
