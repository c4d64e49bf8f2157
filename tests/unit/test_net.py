"""Peers on loopback: connecting, requests and refusals, deadlines, limits, and a clean end."""

from __future__ import annotations

import logging
import socket

import pytest
import trio
import trio.testing
from net_support import ANY_PORT, ECHO, echo, in_trio, two_peers, until

from echo_p2p.errors import (
    ConfigError,
    DeadlineError,
    NetError,
    PeerRefusedError,
    StoreError,
    UnreachableError,
)
from echo_p2p.identity import Identity
from echo_p2p.net import rpc
from echo_p2p.net.host import Remote, Stream, open_peer
from echo_p2p.wire import Done, Latest, LatestRequest, LeaseReturn, Message, Refusal, decode

RPC = "/test/rpc/1"


def _port(address: str) -> int:
    return int(address.split("/")[4])


async def _ask(client, server, body=b"hello", protocol=ECHO, **options):
    options = {"max_reply": 1 << 20, "deadline_s": 10, **options}
    return await client.request(server.peer_id, protocol, body, **options)


# --- connecting --------------------------------------------------------------------------------


@in_trio
async def test_connected_peers_know_each_other_by_their_proven_ids():
    async with two_peers() as (client, server):
        assert client.connected() == {server.peer_id}
        await until(lambda: server.connected() == {client.peer_id})
        seen: list[Remote] = []

        async def who(remote: Remote, body: bytes) -> bytes:
            seen.append(remote)
            return body

        server.serve("/test/who/1", who, max_request=10, deadline_s=5)
        await _ask(client, server, protocol="/test/who/1")
        assert seen == [Remote(client.peer_id, client.identity.public_key)]


@in_trio
async def test_addresses_are_concrete_and_end_in_the_peer_id():
    async with open_peer(Identity.create(), ["/ip4/0.0.0.0/tcp/0"]) as peer:
        assert peer.addresses
        for address in peer.addresses:
            assert address.endswith(f"/p2p/{peer.peer_id}")
            assert "/0.0.0.0/" not in address
            assert _port(address) > 0


@in_trio
async def test_the_wrong_peer_behind_an_address_is_not_believed():
    async with two_peers() as (client, server):
        other = Identity.create().peer_id
        false = server.addresses[0].replace(server.peer_id, other)
        with pytest.raises(UnreachableError, match="another peer answers there"):
            await client.connect([false], deadline_s=5)
        assert other not in client.connected()


@in_trio
async def test_any_address_that_works_is_enough():
    async with (
        open_peer(Identity.create(), []) as client,
        open_peer(Identity.create(), [ANY_PORT]) as server,
    ):
        with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, never answers
            port = silent.getsockname()[1]
            end = f"/p2p/{server.peer_id}"
            addresses = [
                f"/ip4/127.0.0.1/tcp/1{end}",
                f"/ip4/127.0.0.1/tcp/{port}{end}",
                f"/dns4/no-such-name.invalid/tcp/4001{end}",
                f"/dns/localhost/tcp/{_port(server.addresses[0])}{end}",
            ]
            assert await client.connect(addresses, deadline_s=10) == server.peer_id
            assert client.connected() == {server.peer_id}


@in_trio
async def test_an_unreachable_peer_is_described_address_by_address():
    async with open_peer(Identity.create(), []) as client:
        end = f"/p2p/{Identity.create().peer_id}"
        with socket.create_server(("127.0.0.1", 0)) as silent:
            port = silent.getsockname()[1]
            with pytest.raises(UnreachableError) as caught:
                await client.connect(
                    [f"/ip4/127.0.0.1/tcp/{n}{end}" for n in (1, 2, 1, port)],
                    deadline_s=1,
                )
        assert caught.value.tried == (
            f"127.0.0.1:1, 127.0.0.1:2 (connection refused), 127.0.0.1:{port} (no answer)"
        )
        assert caught.value.message == f"{end[5:]} cannot be reached at {caught.value.tried}."
        assert not client.connected()


@in_trio
async def test_addresses_must_name_one_other_peer():
    async with open_peer(Identity.create(), [ANY_PORT]) as peer:
        one, two = Identity.create().peer_id, Identity.create().peer_id
        for addresses in (
            [],
            ["/ip4/127.0.0.1/tcp/1"],
            ["not an address"],
            [f"/ip4/127.0.0.1/tcp/1/p2p/{one}", f"/ip4/127.0.0.1/tcp/1/p2p/{two}"],
            list(peer.addresses),
            ["/ip4/127.0.0.1/tcp/1/p2p/QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N"],
        ):
            with pytest.raises(UnreachableError):
                await peer.connect(addresses, deadline_s=1)


@in_trio
async def test_connecting_at_the_same_time_makes_one_connection():
    async with (
        open_peer(Identity.create(), []) as client,
        open_peer(Identity.create(), [ANY_PORT]) as server,
    ):
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(lambda: client.connect(server.addresses, deadline_s=5))
        await until(lambda: bool(server.connected()))
        assert len(server._host.get_network().get_connections()) == 1


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 in this Python")
@in_trio
async def test_ip6():
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 on this machine")
    async with (
        open_peer(Identity.create(), []) as client,
        open_peer(Identity.create(), ["/ip6/::1/tcp/0"]) as server,
    ):
        server.serve(ECHO, echo, max_request=10, deadline_s=5)
        assert server.addresses[0].startswith("/ip6/::1/tcp/")
        await client.connect(server.addresses, deadline_s=5)
        assert await _ask(client, server) == b"hello"


@in_trio
async def test_plaintext_is_refused():
    """A libp2p host that offers only plaintext gets no further than the negotiation."""
    from libp2p import new_host
    from libp2p.crypto.ed25519 import create_new_key_pair
    from libp2p.custom_types import TProtocol
    from libp2p.network.exceptions import SwarmException
    from libp2p.peer.peerinfo import info_from_p2p_addr
    from libp2p.security.insecure.transport import PLAINTEXT_PROTOCOL_ID, InsecureTransport
    from multiaddr import Multiaddr

    keys = create_new_key_pair()
    plain = new_host(keys, sec_opt={TProtocol(PLAINTEXT_PROTOCOL_ID): InsecureTransport(keys)})
    plain.get_network().retry_config.max_retries = 0
    async with two_peers() as (client, server), plain.run(listen_addrs=[Multiaddr(ANY_PORT)]):
        with pytest.raises(SwarmException):
            await plain.connect(info_from_p2p_addr(Multiaddr(server.addresses[0])))
        with pytest.raises(UnreachableError):
            await client.connect([str(plain.get_addrs()[0])], deadline_s=5)
        assert server.connected() <= {client.peer_id}
        assert await _ask(client, server) == b"hello"


@in_trio
async def test_libp2p_s_own_muxer_understands_ours():
    """Streams to and from a host with libp2p's stock Yamux, in both roles."""
    from libp2p import new_host
    from libp2p.crypto.ed25519 import create_new_key_pair
    from libp2p.crypto.x25519 import create_new_key_pair as create_noise_key_pair
    from libp2p.custom_types import TProtocol
    from libp2p.peer.peerinfo import info_from_p2p_addr
    from libp2p.security.noise.transport import PROTOCOL_ID, Transport
    from multiaddr import Multiaddr

    keys = create_new_key_pair()
    noise = Transport(keys, noise_privkey=create_noise_key_pair().private_key)
    stock = new_host(keys, sec_opt={PROTOCOL_ID: noise}, muxer_preference="YAMUX")
    body = bytes(range(256)) * 8192  # 2 MiB: many windows of 256 KiB

    async def stock_echo(stream):
        size = int.from_bytes(await stream.read(4), "big")
        data = b""
        while len(data) < size:
            data += await stream.read(65536)
        await stream.write(size.to_bytes(4, "big") + data)
        await stream.close()

    async with two_peers() as (client, server), stock.run(listen_addrs=[Multiaddr(ANY_PORT)]):
        stock.set_stream_handler(TProtocol(ECHO), stock_echo)
        server.serve(ECHO, echo, max_request=4 << 20, deadline_s=10)
        await stock.connect(info_from_p2p_addr(Multiaddr(server.addresses[0])))
        stream = await stock.new_stream(server._host.get_id(), [TProtocol(ECHO)])
        await stream.write(len(body).to_bytes(4, "big") + body)
        answer = b""
        while len(answer) < 4 + len(body):
            answer += await stream.read(65536)
        assert answer[4:] == body

        address = str(stock.get_addrs()[0])
        peer_id = await client.connect([address], deadline_s=5)
        reply = await client.request(peer_id, ECHO, body, max_reply=4 << 20, deadline_s=10)
        assert reply == body


@in_trio
async def test_a_peer_without_an_ed25519_key_is_not_served():
    from libp2p import new_host
    from libp2p.crypto.rsa import create_new_key_pair
    from libp2p.crypto.x25519 import create_new_key_pair as create_noise_key_pair
    from libp2p.custom_types import TProtocol
    from libp2p.exceptions import BaseLibp2pError
    from libp2p.peer.peerinfo import info_from_p2p_addr
    from libp2p.security.noise.transport import PROTOCOL_ID, Transport
    from multiaddr import Multiaddr

    keys = create_new_key_pair()
    noise = Transport(keys, noise_privkey=create_noise_key_pair().private_key)
    stranger = new_host(keys, sec_opt={PROTOCOL_ID: noise})
    async with two_peers() as (client, server), stranger.run(listen_addrs=[]):
        await stranger.connect(info_from_p2p_addr(Multiaddr(server.addresses[0])))
        with pytest.raises(BaseLibp2pError):
            stream = await stranger.new_stream(server._host.get_id(), [TProtocol(ECHO)])
            await stream.write(b"\0\0\0\1x")
            await stream.read(5)
        assert await _ask(client, server) == b"hello"


# --- requests ----------------------------------------------------------------------------------


@in_trio
async def test_requests_use_one_stream_after_the_other_and_several_at_a_time():
    async with two_peers() as (client, server):
        for number in range(20):
            assert await _ask(client, server, b"%d" % number) == b"%d" % number
        (connection,) = client._host.get_network().get_connections()
        assert len(connection.streams) == 1
        replies: dict[int, bytes] = {}

        async def one(number: int) -> None:
            replies[number] = await _ask(client, server, b"%d" % number)

        async with trio.open_nursery() as nursery:
            for number in range(200):
                nursery.start_soon(one, number)
        assert replies == {number: b"%d" % number for number in range(200)}
        assert 1 < len(connection.streams) <= 32


@pytest.mark.parametrize("size", [1, 65_000, 65_600, 1 << 20, 8 << 20])
@in_trio
async def test_sizes_of_frames(size):
    body = b"\xa5" * size
    async with two_peers() as (client, server):
        server.serve(ECHO, echo, max_request=8 << 20, deadline_s=20)
        assert await _ask(client, server, body, max_reply=8 << 20) == body


@in_trio
async def test_a_request_to_a_peer_that_is_not_connected():
    async with two_peers() as (client, server):
        await client.disconnect(server.peer_id)
        assert not client.connected()
        with pytest.raises(UnreachableError, match="no connection"):
            await _ask(client, server)
        await client.connect(server.addresses, deadline_s=5)
        assert await _ask(client, server) == b"hello"


@in_trio
async def test_a_protocol_that_nobody_serves():
    async with two_peers() as (client, server):
        with pytest.raises(NetError, match="not supported"):
            await _ask(client, server, protocol="/nobody/1")
        assert await _ask(client, server) == b"hello"


@in_trio
async def test_a_late_answer_is_a_deadline_error_and_never_the_next_request_s_reply():
    async with two_peers() as (client, server):
        release = trio.Event()
        cancelled = trio.Event()

        async def slow(_: Remote, body: bytes) -> bytes:
            try:
                if body == b"slow":
                    await release.wait()
            finally:
                cancelled.set()
            return body

        server.serve("/slow/1", slow, max_request=10, deadline_s=30)
        with pytest.raises(DeadlineError):
            await _ask(client, server, b"slow", "/slow/1", deadline_s=0.2)
        await cancelled.wait()  # the handler does not go on for an asker that gave up
        assert not release.is_set()
        assert await _ask(client, server, b"quick", "/slow/1") == b"quick"


@in_trio
async def test_cancelling_a_writer_in_the_middle_harms_no_other_stream():
    async with two_peers() as (client, server):

        async def never_reads(_: Remote, stream: Stream) -> None:
            await trio.sleep_forever()

        server.serve_stream("/deaf/1", never_reads)
        for _ in range(5):
            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(_write_and_give_up, client, server.peer_id)
            assert await _ask(client, server, b"x" * 100_000) == b"x" * 100_000


async def _write_and_give_up(client, peer_id) -> None:
    with trio.move_on_after(0.05):
        async with client.stream(peer_id, "/deaf/1", deadline_s=5) as stream:
            await stream.send(b"z" * (8 << 20))
            raise AssertionError("eight MiB went to a peer that does not read")


@in_trio
async def test_a_slow_reader_holds_the_sender_back_and_loses_nothing():
    async with two_peers() as (client, server):
        go_on = trio.Event()
        received: list[bytes] = []

        async def slow(_: Remote, stream: Stream) -> None:
            await go_on.wait()
            for _ in range(40):
                received.append(await stream.receive(1 << 20, deadline_s=10))
            await stream.send(b"done")

        server.serve_stream("/slow-reader/1", slow)
        sent = 0

        async def send_all(stream: Stream) -> None:
            nonlocal sent
            for number in range(40):
                await stream.send(bytes([number]) * (1 << 20))
                sent += 1

        async with client.stream(server.peer_id, "/slow-reader/1", deadline_s=5) as stream:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(send_all, stream)
                await trio.testing.wait_all_tasks_blocked(0.2)
                assert sent < 2  # a window and two queues hold less than 2 MiB
                go_on.set()
            assert await stream.receive(10, deadline_s=10) == b"done"
        assert received == [bytes([number]) * (1 << 20) for number in range(40)]


@in_trio
async def test_receive_can_be_repeated_after_its_deadline():
    async with two_peers() as (client, server):
        go_on = trio.Event()

        async def late(_: Remote, stream: Stream) -> None:
            await stream.send(b"x" * 100_000)
            await go_on.wait()
            await stream.send(b"second")
            await trio.sleep_forever()

        server.serve_stream("/late/1", late)
        async with client.stream(server.peer_id, "/late/1", deadline_s=5) as stream:
            assert len(await stream.receive(1 << 20, deadline_s=5)) == 100_000
            with pytest.raises(DeadlineError):
                await stream.receive(10, deadline_s=0.05)
            go_on.set()
            assert await stream.receive(10, deadline_s=5) == b"second"


@in_trio
async def test_the_end_of_a_stream_is_a_net_error():
    async with two_peers() as (client, server):

        async def one(_: Remote, stream: Stream) -> None:
            await stream.send(b"one")

        server.serve_stream("/one/1", one)
        async with client.stream(server.peer_id, "/one/1", deadline_s=5) as stream:
            assert await stream.receive(10, deadline_s=5) == b"one"
            with pytest.raises(NetError, match="ended"):
                await stream.receive(10, deadline_s=5)


@in_trio
async def test_what_waits_on_a_lost_connection_fails_at_once():
    async with two_peers() as (client, server):

        async def forever(_: Remote, body: bytes) -> bytes:
            await trio.sleep_forever()
            return body

        server.serve("/forever/1", forever, max_request=10, deadline_s=600)
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:

                async def ask() -> None:
                    with pytest.raises(NetError) as caught:
                        await _ask(client, server, protocol="/forever/1", deadline_s=600)
                    assert not isinstance(caught.value, DeadlineError)

                for _ in range(3):
                    nursery.start_soon(ask)
                await trio.testing.wait_all_tasks_blocked(0.1)
                await server.disconnect(client.peer_id)
        await until(lambda: not client.connected())


# --- what is refused -----------------------------------------------------------------------------


@in_trio
async def test_too_large_requests_are_refused_and_the_stream_goes_on():
    async with two_peers() as (client, server):
        server.serve(ECHO, echo, max_request=100, deadline_s=10)
        for _ in range(3):
            refusal = decode(await _ask(client, server, b"x" * 300_000), Refusal)
            assert refusal.code == "too_large"
            assert await _ask(client, server, b"x" * 100) == b"x" * 100


@in_trio
async def test_a_reply_that_is_too_large_is_not_read():
    async with two_peers() as (client, server):
        with pytest.raises(NetError, match="30 are allowed"):
            await _ask(client, server, b"x" * 31, max_reply=30)
        assert await _ask(client, server, b"x" * 30, max_reply=30) == b"x" * 30


@in_trio
async def test_rpc_refusals(caplog):
    async with two_peers() as (client, server):

        async def handler(remote: Remote, message: LatestRequest) -> Message:
            match message.run_id:
                case "a":
                    raise PeerRefusedError("not this run.", code="wrong_run")
                case "b":
                    raise StoreError("the disk is full.", fix="Make room.")
                case "c":
                    raise ZeroDivisionError
                case "d":
                    await trio.sleep_forever()
            return Done()

        rpc.answer(server, RPC, LatestRequest, handler, deadline_s=0.5)

        async def ask(message: Message, reply: object = Done) -> Message:
            return await rpc.ask(client, server.peer_id, RPC, message, reply, deadline_s=5)

        for run_id, code, words in (
            ("a", "wrong_run", "not this run."),
            ("b", "error", "the disk is full. Make room."),
            ("c", "internal", "could not be carried out"),
            ("d", "deadline", "not carried out in 0.5 s"),
        ):
            with pytest.raises(PeerRefusedError, match=words) as caught:
                await ask(LatestRequest(run_id=run_id))
            assert caught.value.code == code
        with pytest.raises(PeerRefusedError) as caught:
            await ask(LeaseReturn(run_id="a", lease_ids=()))
        assert caught.value.code == "bad_message"
        with pytest.raises(NetError, match="answered LatestRequest with"):
            await ask(LatestRequest(run_id="e"), Latest)
        assert await ask(LatestRequest(run_id="e")) == Done()
        assert await ask(LatestRequest(run_id="e"), Latest | Done) == Done()
    assert [r.exc_info[0] for r in caplog.records if r.levelno >= logging.ERROR] == [
        ZeroDivisionError
    ]


@in_trio
async def test_one_peer_has_so_many_requests_under_way_and_no_more():
    async with two_peers() as (client, server):
        running, most = 0, 0
        release = trio.Event()

        async def count(_: Remote, body: bytes) -> bytes:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await release.wait()
            running -= 1
            return body

        server.serve("/count/1", count, max_request=10, deadline_s=30, concurrency=3)
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(_ask, client, server, b"x", "/count/1")
            await trio.testing.wait_all_tasks_blocked(0.2)
            assert most == 3
            release.set()
        assert most == 3


@in_trio
async def test_more_connections_than_allowed_are_turned_away_and_places_become_free():
    async with open_peer(Identity.create(), [ANY_PORT], max_connections=2) as server:
        for _ in range(3):  # libp2p would count every connection ever made
            async with (
                open_peer(Identity.create(), []) as one,
                open_peer(Identity.create(), []) as two,
                open_peer(Identity.create(), []) as three,
            ):
                await one.connect(server.addresses, deadline_s=5)
                await two.connect(server.addresses, deadline_s=5)
                await until(lambda: len(server.connected()) == 2)
                with pytest.raises(UnreachableError):
                    await three.connect(server.addresses, deadline_s=5)
            await until(lambda: not server.connected())


# --- coming and going ----------------------------------------------------------------------------


@in_trio
async def test_leaving_closes_ports_and_ends_tasks():
    before = trio.lowlevel.current_statistics().tasks_living
    async with two_peers() as (_client, server):
        port = _port(server.addresses[0])
    await trio.testing.wait_all_tasks_blocked()
    assert trio.lowlevel.current_statistics().tasks_living == before
    with pytest.raises(OSError):
        await trio.open_tcp_stream("127.0.0.1", port)


@in_trio
async def test_being_cancelled_closes_ports_and_ends_tasks():
    before = trio.lowlevel.current_statistics().tasks_living
    with trio.CancelScope() as scope:
        async with two_peers() as (_client, server):
            port = _port(server.addresses[0])
            scope.cancel()
            await trio.sleep_forever()
    await trio.testing.wait_all_tasks_blocked()
    assert trio.lowlevel.current_statistics().tasks_living == before
    with pytest.raises(OSError):
        await trio.open_tcp_stream("127.0.0.1", port)


@in_trio
async def test_an_error_in_the_block_comes_out_as_it_is():
    with pytest.raises(StoreError, match="no room"):
        async with open_peer(Identity.create(), [ANY_PORT]):
            raise StoreError("no room.")


@in_trio
async def test_a_failure_of_the_network_service_ends_the_block_loudly():
    async def fail() -> None:
        raise ZeroDivisionError("a bug in the service")

    with pytest.raises(NetError, match="a bug in the service"):
        async with open_peer(Identity.create(), [ANY_PORT]) as peer:
            peer._host.get_network().manager.run_task(fail)
            await trio.sleep_forever()


@in_trio
async def test_a_port_in_use_is_an_error():
    async with open_peer(Identity.create(), [ANY_PORT]) as first:
        taken = first.addresses[0].split("/p2p/")[0]
        with pytest.raises(NetError, match=r"cannot listen on .*in use"):
            async with open_peer(Identity.create(), [taken]):
                pass
    for wrong, error in (
        ("/ip4/192.0.2.77/tcp/0", NetError),
        ("/ip4/127.0.0.1", ConfigError),
        ("foo", ConfigError),
        ("/dns4/localhost/tcp/0", ConfigError),
    ):
        with pytest.raises(error):
            async with open_peer(Identity.create(), [wrong]):
                pass


@in_trio
async def test_a_port_can_be_listened_on_again_at_once():
    async with two_peers() as (client, server):
        listen = server.addresses[0].split("/p2p/")[0]
        assert await _ask(client, server) == b"hello"
    async with open_peer(Identity.create(), [listen]) as again:
        assert again.addresses[0].startswith(listen)
