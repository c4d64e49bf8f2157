"""Multiaddrs: which peer and which TCP endpoints an address names, and where we can be dialled."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence

import trio
from multiaddr import Multiaddr
from multiaddr.exceptions import BinaryParseError, StringParseError
from multiaddr.utils import get_network_addrs

from echo_p2p.errors import IdentityError, NetError, UnreachableError
from echo_p2p.identity import public_key_of

_FAMILIES = {
    "ip4": socket.AF_INET,
    "ip6": socket.AF_INET6,
    "dns4": socket.AF_INET,
    "dns6": socket.AF_INET6,
    "dns": socket.AF_UNSPEC,
}


def parse(address: str) -> Multiaddr:
    """The multiaddr in a string; UnreachableError if it is none."""
    try:
        return Multiaddr(address)
    except (StringParseError, BinaryParseError, ValueError) as error:
        raise UnreachableError(f"{address!r} is not a multiaddr: {error}.") from error


def peer_of(address: str) -> str:
    """The Ed25519 peer id that ends an address."""
    last = list(parse(address).items())[-1:]
    peer_id = str(last[0][1]) if last and last[0][0].name == "p2p" else ""
    try:
        public_key_of(peer_id)
    except IdentityError as error:
        raise UnreachableError(
            f"{address} does not end in /p2p/ and the peer id of an Ed25519 key.",
            fix="Copy the whole address.",
        ) from error
    return peer_id


def _place(address: str) -> tuple[str, str, int]:
    """What kind of host an address names, the host, and its TCP port."""
    parts = [(protocol.name, value) for protocol, value in parse(address).items()]
    match parts:
        case [(kind, str(host)), ("tcp", port)] | [(kind, str(host)), ("tcp", port), ("p2p", _)]:
            if kind in _FAMILIES:
                return kind, host, int(port)
    raise UnreachableError(
        f"{address} is not of a kind we use.", fix="It begins with /ip4, /ip6 or /dns, then /tcp."
    )


async def endpoints(address: str) -> list[Multiaddr]:
    """The IP addresses and TCP port that an address stands for; names are looked up."""
    kind, host, port = _place(address)
    if kind in ("ip4", "ip6"):
        return [Multiaddr(f"/{kind}/{host}/tcp/{port}")]
    try:
        found = await trio.socket.getaddrinfo(
            host, port, family=_FAMILIES[kind], type=socket.SOCK_STREAM
        )
    except OSError as error:
        raise UnreachableError(f"the name {host} cannot be resolved: {error.strerror}.") from error
    return [_endpoint(str(entry[4][0]), port) for entry in found]


def _endpoint(host: str, port: int) -> Multiaddr:
    version = ipaddress.ip_address(host.split("%")[0]).version
    return Multiaddr(f"/ip{version}/{host}/tcp/{port}")


def check_free(address: str) -> None:
    """NetError if another program listens there.

    libp2p listens with SO_REUSEPORT, so two hubs on one port would share its connections unnoticed.
    """
    kind, host, port = _place(address)
    with socket.socket(_FAMILIES[kind]) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise NetError(
                f"cannot listen on {address}: {(error.strerror or str(error)).lower()}.",
                fix="Is it this machine's address, and is no other program using the port?",
            ) from error


def dialable(listening: Sequence[Multiaddr], peer_id: str) -> tuple[str, ...]:
    """Where others can dial us: wildcards become the addresses of this machine's interfaces."""
    addresses: dict[str, None] = {}
    for address in listening:
        kind = next(iter(address.protocols())).name
        host, port = address.value_for_protocol(kind), address.value_for_protocol("tcp")
        hosts = [host]
        if ipaddress.ip_address(host).is_unspecified:
            loopback = "127.0.0.1" if kind == "ip4" else "::1"
            hosts = get_network_addrs(int(kind[-1])) or [loopback]
        for one in hosts:
            addresses[f"/{kind}/{one}/tcp/{port}/p2p/{peer_id}"] = None
    return tuple(addresses)
