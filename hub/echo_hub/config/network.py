"""`[network]`: addresses, limits, the directory."""

from __future__ import annotations

from pydantic import ValidationInfo, field_validator

from echo_hub.config.fields import Positive
from echo_p2p.errors import EchoError
from echo_p2p.net.addresses import parse, parse_listen, peer_of
from echo_p2p.rates import Limits, parse_rate
from echo_p2p.toml import Strict


class NetworkSection(Strict):
    listen: tuple[str, ...] = ("/ip4/0.0.0.0/tcp/42420",)
    """Multiaddrs to listen on."""
    announce: tuple[str, ...] = ()
    """Multiaddrs given to nodes instead of the listened ones, without /p2p."""
    max_upload: str = "unlimited"
    """Most that the hub sends a second, like "100mbit" or "12.5MB", all connections together. A
    little under what the uplink really does, nodes are answered soonest while a version is sent."""
    keys_per_address: Positive = 32
    """Nodes that one network address (of IPv6: one /64) may bring within an hour; loopback is not
    counted."""
    directory: bool = True
    """Run a directory (DHT) process and publish the run's record in it."""
    directory_listen: tuple[str, ...] = ("/ip4/0.0.0.0/tcp/42421",)
    """Multiaddrs of the directory process."""
    directory_peers: tuple[str, ...] = ()
    """Other directory peers to join, with /p2p."""

    @field_validator("max_upload")
    @classmethod
    def _is_a_rate(cls, value: str) -> str:
        try:
            rate = parse_rate(value)
        except EchoError as error:
            raise ValueError(str(error).rstrip(".")) from error
        if rate == 0:
            raise ValueError("nobody could get a version from a hub that sends none")
        return value

    @property
    def limits(self) -> Limits:
        """What the hub may send and receive."""
        return Limits(upload=parse_rate(self.max_upload))

    @field_validator("listen", "directory_listen")
    @classmethod
    def _listens_somewhere(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value:
            raise ValueError("nobody could reach a hub that listens nowhere; name an address")
        return value

    @field_validator("listen", "announce", "directory_listen", "directory_peers")
    @classmethod
    def _are_addresses(cls, value: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        check = {"announce": parse, "directory_peers": peer_of}.get(
            info.field_name or "", parse_listen
        )
        for address in value:
            try:
                check(address)
            except EchoError as error:
                raise ValueError(error.message.rstrip(".")) from error
            if info.field_name == "announce" and "/p2p/" in address:
                raise ValueError(f"{address!r} is wanted without /p2p and a peer id")
        return value
