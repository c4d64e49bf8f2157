"""The multiaddrs we use: /ip4, /ip6 or /dns, then /tcp, then /p2p and a peer id.

They come from strangers too, so they are taken apart here, whole or not at all.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass

import trio
from multiaddr import Multiaddr
from multiaddr.utils import get_network_addrs

from echo_p2p.errors import IdentityError, ListenError, PortError, UnreachableError
from echo_p2p.identity import public_key_of

_FAMILIES = {
    "ip4": socket.AF_INET,
    "ip6": socket.AF_INET6,
    "dns4": socket.AF_INET,
    "dns6": socket.AF_INET6,
    "dns": socket.AF_UNSPEC,
}
_ADDRESS = re.compile(
    r"/(ip[46]|dns[46]?)/([0-9A-Za-z.:_-]{1,253})/tcp/([0-9]{1,5})(?:/p2p/(\w{1,80}))?"
)

_LISTEN_FIX = "For example: /ip4/0.0.0.0/tcp/42420."


@dataclass(frozen=True)
class Address:
    """A TCP port of a host (an IP or a name, as `kind` says), and who should answer there."""

    kind: str
    host: str
    port: int
    peer_id: str | None

    @property
    def endpoint(self) -> Multiaddr:
        return Multiaddr(f"/{self.kind}/{self.host}/tcp/{self.port}")

    @property
    def place(self) -> str:
        """Host and port, as people write them."""
        host = f"[{self.host}]" if self.kind == "ip6" else self.host
        return f"{host}:{self.port}"


def parse(text: str) -> Address:
    """The address in a string; UnreachableError if it is none, or of a kind we do not use."""
    try:
        return _parse(text)
    except (ValueError, IdentityError) as error:
        raise UnreachableError(f"{text!r} is not an address we can use: {error}.") from error


def _parse(text: str) -> Address:
    match = _ADDRESS.fullmatch(text)
    if match is None:
        raise ValueError("it should read /ip4/<address>/tcp/<port>/p2p/<peer id>")
    kind, host, port, peer_id = match.groups()
    if kind.startswith("ip") and str(ipaddress.ip_address(host).version) != kind[-1]:
        raise ValueError("it mixes IPv4 and IPv6")
    if int(port) > 65535:
        raise ValueError("there is no such port")
    if peer_id is not None:
        public_key_of(peer_id)
    return Address(kind, host, int(port), peer_id)


def parse_listen(text: str) -> Address:
    """The address in a string, for listening on; ListenError if that cannot be."""
    try:
        address = _parse(text)
    except (ValueError, IdentityError) as error:
        raise ListenError(
            f"{text!r} is not an address to listen on: {error}.", fix=_LISTEN_FIX
        ) from error
    if not address.kind.startswith("ip"):
        raise ListenError(
            f"{text!r} is not an address to listen on: it has a name.", fix=_LISTEN_FIX
        )
    return address


def peer_of(text: str) -> str:
    """The peer id that ends an address."""
    peer_id = parse(text).peer_id
    if peer_id is None:
        raise UnreachableError(
            f"{text} does not end in /p2p/ and a peer id.", fix="Copy the whole address."
        )
    return peer_id


async def endpoints(text: str) -> list[Multiaddr]:
    """The IP addresses and TCP port that an address stands for; names are looked up."""
    address = parse(text)
    if address.kind in ("ip4", "ip6"):
        return [address.endpoint]
    try:
        found = await trio.socket.getaddrinfo(
            address.host, address.port, _FAMILIES[address.kind], socket.SOCK_STREAM
        )
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise UnreachableError(f"the name {address.host} cannot be resolved: {why}.") from error
    kinds = {socket.AF_INET: "ip4", socket.AF_INET6: "ip6"}
    return [
        Address(kinds[family], str(where[0]), address.port, None).endpoint
        for family, _, _, _, where in found
        if family in kinds
    ]


def check_free(text: str) -> None:
    """PortError if another program listens there; ListenError if it is no address for that.

    libp2p listens with SO_REUSEPORT, so two hubs on one port would share its connections unnoticed.
    """
    address = parse_listen(text)
    with socket.socket(_FAMILIES[address.kind]) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address.host, address.port))
        except OSError as error:
            raise PortError(
                f"cannot listen on {text}: {(error.strerror or str(error)).lower()}.",
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
