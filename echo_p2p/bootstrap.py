"""`bootstrap_peers.toml`: how a node that knows nothing finds a run.

Invariants of a file that was accepted: it speaks this program's protocol; every run has a key that
is the root of all trust in it (a peer id, which holds the hub's public key), and at least three
well-formed addresses, one of them the hub's; no address can lead a connection astray, since each
names the peer id that must answer there.

The demo network's private keys are published (here). They are good for processes on one machine
that want to find each other without any set-up, and worthless as an identity; so they are refused
together with any address that is not loopback.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import Annotated

from blake3 import blake3
from pydantic import AwareDatetime, Field, field_validator, model_validator

from echo_p2p import PROTOCOL
from echo_p2p.errors import BootstrapError, IdentityError, UnreachableError
from echo_p2p.identity import Identity, public_key_of
from echo_p2p.net.addresses import Address, parse
from echo_p2p.toml import Strict, parse_toml, wrong
from echo_p2p.wire import MAX_ADDRESSES

FILE_NAME = "bootstrap_peers.toml"
MIN_ADDRESSES = 3

DEMO_RUN_ID = "demo"

DEMO_IDENTITY_SEED = blake3(b"echo-p2p local demo network").digest()
"""PUBLISHED private key of the demo network's hub: for loopback addresses only."""
DEMO_DIRECTORY_SEED = blake3(b"echo-p2p local demo directory").digest()
"""PUBLISHED private key of the demo network's directory: for loopback addresses only."""

_DEMO_PEER_IDS = frozenset(
    Identity.from_seed(seed).peer_id for seed in (DEMO_IDENTITY_SEED, DEMO_DIRECTORY_SEED)
)


def peer_id_in(address: str) -> str:
    """The peer id that must answer at a dialable address; ValueError if it is not one."""
    peer_id = _parse(address).peer_id
    if peer_id is None:
        raise ValueError(f"{address!r} does not end in /p2p/<peer id>")
    return peer_id


def is_loopback(address: str) -> bool:
    """Whether an address leads to this machine itself."""
    parsed = _parse(address)
    if parsed.kind.startswith("ip"):
        return ipaddress.ip_address(parsed.host).is_loopback
    return parsed.host == "localhost"


def _parse(address: str) -> Address:
    try:
        return parse(address)
    except UnreachableError as error:
        raise ValueError(error.message.rstrip(".")) from error


class RunEntry(Strict):
    id: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
    """Name of the run."""
    hub_key: str
    """The hub's public key, as its peer id. Whatever the hub says is checked against it."""
    addresses: Annotated[tuple[str, ...], Field(min_length=MIN_ADDRESSES, max_length=MAX_ADDRESSES)]
    """Multiaddrs ending in /p2p/<peer id>: the hub's own, and the directory's peers."""

    @field_validator("hub_key")
    @classmethod
    def _is_ed25519(cls, value: str) -> str:
        try:
            public_key_of(value)
        except IdentityError as error:
            raise ValueError(error.message.rstrip(".")) from error
        return value

    @field_validator("addresses")
    @classmethod
    def _name_peers(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for address in value:
            peer_id_in(address)
        return value

    @model_validator(mode="after")
    def _addresses_fit_the_key(self) -> RunEntry:
        if self.hub_key not in [peer_id_in(address) for address in self.addresses]:
            raise wrong("addresses", f"no address ends in the hub's peer id, /p2p/{self.hub_key}")
        for address in self.addresses:
            if self._is_published(address) and not is_loopback(address):
                raise wrong(
                    "addresses",
                    f"{address!r} is not a loopback address, and the demo network's private keys "
                    "are published: anybody could be this hub. Make a key with: echo-hub init",
                )
        return self

    def _is_published(self, address: str) -> bool:
        return bool({peer_id_in(address), self.hub_key} & _DEMO_PEER_IDS)

    def believable(self, addresses: Sequence[str]) -> tuple[str, ...]:
        """Those of the addresses from elsewhere that this entry could hold as the hub's."""
        found = []
        for address in addresses:
            with suppress(ValueError):
                published = self._is_published(address) and not is_loopback(address)
                if peer_id_in(address) == self.hub_key and not published:
                    found.append(address)
        return tuple(found)

    @property
    def hub_public_key(self) -> bytes:
        return public_key_of(self.hub_key)

    @property
    def hub_addresses(self) -> tuple[str, ...]:
        return tuple(a for a in self.addresses if peer_id_in(a) == self.hub_key)

    @property
    def directory_peers(self) -> tuple[str, ...]:
        return tuple(a for a in self.addresses if peer_id_in(a) != self.hub_key)


class Bootstrap(Strict):
    protocol: int
    """Protocol version that the network speaks."""
    network: Annotated[str, Field(min_length=1, max_length=80)]
    """Name of the network, for people."""
    run: Annotated[tuple[RunEntry, ...], Field(min_length=1, max_length=100)]
    """The runs one can join."""
    expires: AwareDatetime | None = None
    """When the file stops being of use, as 2027-06-30T00:00:00Z; never without it."""

    @field_validator("protocol")
    @classmethod
    def _is_ours(cls, value: int) -> int:
        if value != PROTOCOL:
            raise ValueError(
                f"the network speaks protocol {value}, this program {PROTOCOL}; "
                "upgrade the older of the two"
            )
        return value

    @field_validator("run")
    @classmethod
    def _ids_differ(cls, value: tuple[RunEntry, ...]) -> tuple[RunEntry, ...]:
        if len({entry.id for entry in value}) < len(value):
            raise ValueError("two runs have the same id")
        return value

    def check_current(self, now: datetime, *, source: str) -> None:
        """BootstrapError if the file has expired; `now` is of this machine's clock."""
        if self.expires is not None and now >= self.expires:
            raise BootstrapError(
                f"{source} expired on {self.expires:%d %B %Y}, and this computer's clock says "
                f"{now:%d %B %Y}.",
                fix="Ask the run's operator for a newer file; if the clock is wrong, set it.",
            )

    def choose(self, run_id: str | None) -> RunEntry:
        """The run with this id; without one, the only run there is."""
        known = ", ".join(entry.id for entry in self.run)
        if run_id is None:
            if len(self.run) > 1:
                raise BootstrapError(
                    f"{self.network} has several runs: {known}.", fix="Name one with --run."
                )
            return self.run[0]
        for entry in self.run:
            if entry.id == run_id:
                return entry
        raise BootstrapError(
            f"{self.network} has no run {run_id!r}. It has: {known}.", fix="Name one with --run."
        )


_HEADER = """\
# How a node finds its run. Hand this file to volunteers: echo-node join --bootstrap FILE
#
# hub_key is the hub's public key, written as its peer id; everything the hub says is checked
# against it. addresses are multiaddrs ending in /p2p/<peer id>, three or more: those with the
# hub's peer id are the hub's own, the others are peers of the directory, which is asked where the
# hub is now if none of its addresses answers.
"""


def render_bootstrap(
    *,
    network: str,
    run_id: str,
    hub_key: str,
    addresses: Sequence[str],
    note: str = "",
    expires: datetime | None = None,
) -> str:
    """The text of a bootstrap file with one run; `note` is added to its opening comment."""
    lines = [_HEADER + "".join(f"# {line}".rstrip() + "\n" for line in note.splitlines())]
    lines += [
        f"protocol = {PROTOCOL}",
        f"network = {json.dumps(network, ensure_ascii=False)}",
        *([] if expires is None else [f"expires = {expires.isoformat()}"]),
        "",
        "[[run]]",
        f"id = {json.dumps(run_id)}",
        f"hub_key = {json.dumps(hub_key)}",
        "addresses = [",
        *(f"    {json.dumps(address)}," for address in addresses),
        "]",
    ]
    text = "\n".join(lines) + "\n"
    parse_toml(text, Bootstrap, source=FILE_NAME)
    return text
