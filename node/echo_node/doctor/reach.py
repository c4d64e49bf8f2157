"""Whether other nodes can dial this one, as far as its own addresses tell. Never an error: a node
that only dials out works, and gets everything."""

from __future__ import annotations

import ipaddress
from typing import Literal

from echo_node.doctor.findings import Finding
from echo_node.doctor.situation import Check, Situation
from echo_p2p.net.addresses import parse

NAME = "reach"

Class = Literal["public", "local"]


def class_of(addresses: tuple[str, ...]) -> Class:
    """ "public" if an address of this machine's own is one of the internet's."""
    hosts = (ipaddress.ip_address(parse(address).host) for address in addresses)
    return "public" if any(host.is_global for host in hosts) else "local"


def judge(addresses: tuple[str, ...] | None) -> list[Finding]:
    """None: not looked at."""
    if addresses is None:
        return [Finding(check=NAME, severity="note", said="not looked at without the hub.")]
    if class_of(addresses) == "public":
        said = (
            "public: this computer has an address of the internet. Other nodes can dial it, unless "
            "a firewall keeps them out."
        )
        return [Finding(check=NAME, severity="ok", said=said)]
    said = (
        "not dialable from the internet: this computer is behind a router. It works all the same, "
        "and gives chunks to the nodes that it dials itself."
    )
    return [Finding(check=NAME, severity="note", said=said)]


async def _run(situation: Situation) -> list[Finding]:
    way = await situation.way()
    return judge(None if way is None else way.own)


CHECK = Check(NAME, "Reachability", _run)
