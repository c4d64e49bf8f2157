"""What addresses mean, without a network."""

from __future__ import annotations

import socket
from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from multiaddr import Multiaddr
from net_support import in_trio

from echo_p2p.errors import NetError, UnreachableError
from echo_p2p.identity import Identity
from echo_p2p.net import addresses

PEER = Identity.from_seed(bytes(32)).peer_id
OTHER = Identity.from_seed(b"\x01" * 32).peer_id


@pytest.mark.parametrize(
    "address",
    [
        f"/ip4/1.2.3.4/tcp/5/p2p/{PEER}",
        f"/dns4/hub.example.org/tcp/4001/p2p/{PEER}",
        f"/ip6/fe80::1/tcp/65535/p2p/{PEER}",
    ],
)
def test_the_peer_is_the_one_at_the_end(address):
    assert addresses.peer_of(address) == PEER


@pytest.mark.parametrize(
    "address",
    [
        "",
        "/",
        "hub.example.org:4001",
        "/ip4/1.2.3.4/tcp/5",
        "/ip4/1.2.3.4/tcp/99999",
        f"/ip4/1.2.3/tcp/5/p2p/{PEER}",
        "/ip4/1.2.3.4/tcp/5/p2p/nobody",
        f"/ip4/1.2.3.4/tcp/5/p2p/{OTHER}/p2p-circuit/p2p/{PEER}",
        f"/ip4/::1/tcp/5/p2p/{PEER}",
        f"/ip4/1.2.3.4/tcp/5/p2p/{PEER}\n",
        "/ip4/1.2.3.4/tcp/5/p2p/QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N",
    ],
)
def test_addresses_that_name_no_peer(address):
    with pytest.raises(UnreachableError):
        addresses.peer_of(address)


NAMES = ["ip4", "ip6", "dns", "tcp", "udp", "p2p", "p2p-circuit", "unix", "ip6zone", "onion3"]
VALUES = ["", "0", "65536", "-1", "1.2.3.4", "::1", "::1%x", "localhost", "ä", "\0", "%"]
PARTS = st.sampled_from([*NAMES, *VALUES, PEER, PEER[:-1]])


@given(st.one_of(st.text(), st.lists(PARTS).map(lambda parts: "/" + "/".join(parts))))
@example("/ip4/1.2.3.4/tcp/5/p2p/" + "1" * 300)
def test_any_text_is_an_address_or_unreachable(text):
    with suppress(UnreachableError):
        assert addresses.peer_of(text) == PEER
        assert addresses.parse(text).endpoint


@in_trio
async def test_endpoints():
    end = f"/p2p/{PEER}"
    assert await addresses.endpoints(f"/ip4/1.2.3.4/tcp/5{end}") == [
        Multiaddr("/ip4/1.2.3.4/tcp/5")
    ]
    assert await addresses.endpoints(f"/ip6/::1/tcp/5{end}") == [Multiaddr("/ip6/::1/tcp/5")]
    assert Multiaddr("/ip4/127.0.0.1/tcp/5") in await addresses.endpoints(
        f"/dns4/localhost/tcp/5{end}"
    )
    with pytest.raises(UnreachableError, match="cannot be resolved"):
        await addresses.endpoints(f"/dns/no-such-name.invalid/tcp/5{end}")
    for other in (
        f"/ip4/1.2.3.4/udp/5/quic-v1{end}",
        f"/ip4/1.2.3.4/tcp/5/ws{end}",
        f"/ip4/1.2.3.4/tcp/5/p2p/{OTHER}/p2p-circuit{end}",
    ):
        with pytest.raises(UnreachableError, match="not an address we can use"):
            await addresses.endpoints(other)


def test_wildcards_become_this_machine_s_addresses():
    found = addresses.dialable([Multiaddr("/ip4/0.0.0.0/tcp/5")], PEER)
    assert found
    assert all("0.0.0.0" not in address for address in found)
    assert addresses.dialable([Multiaddr("/ip4/10.0.0.1/tcp/5")] * 2, PEER) == (
        f"/ip4/10.0.0.1/tcp/5/p2p/{PEER}",
    )


def test_a_port_that_is_taken():
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        pytest.raises(NetError, match="in use"),
    ):
        addresses.check_free(f"/ip4/127.0.0.1/tcp/{server.getsockname()[1]}")
    addresses.check_free("/ip4/127.0.0.1/tcp/0")
