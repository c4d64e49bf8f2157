"""Multiaddrs: which peer and which TCP endpoints an address names, and where we can be dialled."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence

import trio
from multiaddr import Multiaddr
from multiaddr.exceptions import BinaryParseError, ProtocolLookupError, StringParseError
from multiaddr.utils import get_network_addrs

from echo_p2p.errors import IdentityError, NetError, UnreachableError
from echo_p2p.identity import public_key_of

_FAMILIES = {
    "ip4": trio.socket.AF_INET,
    "ip6": trio.socket.AF_INET6,
    "dns4": trio.socket.AF_INET,
    "dns6": trio.socket.AF_INET6,
    "dns": trio.socket.AF_UNSPEC,
}


def parse(address: str) -> Multiaddr:
    """The multiaddr in a string; UnreachableError if it is none."""
    try:
        return Multiaddr(address)
    except (StringParseError, BinaryParseError, ValueError) as error:
        raise UnreachableError(f"{address!r} is not a multiaddr: {error}.") from error


def peer_of(address: str) -> str:
    """The Ed25519 peer id that ends an address."""
    try:
        peer_id = parse(address).value_for_protocol("p2p")
        public_key_of(peer_id)
    except (ProtocolLookupError, IdentityError) as error:
        raise UnreachableError(
            f"{address} does not end in /p2p/<peer id>.", fix="Copy the whole address."
        ) from error
    return str(peer_id)


async def endpoints(address: str) -> list[Multiaddr]:
    """The IP addresses and TCP port that an address stands for; names are looked up."""
    parts = parse(address)
    kind = next(iter(parts.protocols())).name
    if kind not in _FAMILIES:
        raise UnreachableError(f"{address} is not of a kind we dial (IP or DNS, then TCP).")
    try:
        host, port = parts.value_for_protocol(kind), int(parts.value_for_protocol("tcp"))
    except ProtocolLookupError as error:
        raise UnreachableError(f"{address} has no TCP port.") from error
    if kind.startswith("ip"):
        return [_tcp(host, port)]
    try:
        found = await trio.socket.getaddrinfo(
            host, port, family=_FAMILIES[kind], type=trio.socket.SOCK_STREAM
        )
    except OSError as error:
        raise UnreachableError(f"the name {host} cannot be resolved: {error.strerror}.") from error
    return [_tcp(str(entry[4][0]), port) for entry in found]


def _tcp(host: str, port: int) -> Multiaddr:
    version = ipaddress.ip_address(host.split("%")[0]).version
    return Multiaddr(f"/ip{version}/{host}/tcp/{port}")


def check_free(address: str) -> None:
    """NetError if another program listens there.

    libp2p listens with SO_REUSEPORT, so two hubs on one port would share its connections unnoticed.
    """
    parts = parse(address)
    kind = next(iter(parts.protocols())).name
    try:
        host, port = parts.value_for_protocol(kind), int(parts.value_for_protocol("tcp"))
    except ProtocolLookupError as error:
        raise NetError(f"{address} has no TCP port to listen on.") from error
    with socket.socket(socket.AF_INET6 if kind == "ip6" else socket.AF_INET) as probe:
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
