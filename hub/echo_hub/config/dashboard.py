"""`[dashboard]`: where the hub's page and API are served, and who may use them."""

from __future__ import annotations

import ipaddress
from typing import Annotated

from pydantic import Field, field_validator, model_validator

from echo_hub.config.fields import Fraction
from echo_p2p.toml import Strict, wrong


class DashboardSection(Strict):
    enabled: bool = True
    """Serve the dashboard, its API and /metrics while the run is served."""
    host: str = "127.0.0.1"
    """IP address to listen on. Any but loopback needs `token_file`, and TLS or `plain_http`."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8420
    """TCP port; 0 takes one that is free."""
    names: tuple[Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$")], ...] = ()
    """Host names, in lower case, by which browsers reach it, beside `localhost` and plain IP
    addresses. A request for another name is refused, so that no web site can point its own name
    here."""
    token_file: str = ""
    """A file with a secret of 16 characters or more, which only you may read. With it everybody
    has to log in, also on loopback. `echo-hub serve` makes it if it does not exist. A path that is
    not absolute starts at the run's folder."""
    tls_cert: str = ""
    """PEM file with the certificate, and its chain. With `tls_key` it is served over TLS."""
    tls_key: str = ""
    """PEM file with the certificate's private key."""
    plain_http: bool = False
    """Serve an address that is not loopback without TLS: only behind a proxy that adds it, since
    the token would cross the network readable."""
    public: bool = False
    """Serve /public, without a log-in: progress, leader board, how to join. No address or key of a
    node is in it."""

    @field_validator("host")
    @classmethod
    def _is_an_address(cls, value: str) -> str:
        try:
            return str(ipaddress.ip_address(value))
        except ValueError as error:
            raise ValueError("an IP address is wanted, like 127.0.0.1 or 0.0.0.0") from error

    @property
    def is_loopback(self) -> bool:
        """Can only this machine reach it?"""
        return ipaddress.ip_address(self.host).is_loopback

    @property
    def has_tls(self) -> bool:
        """Is it served over TLS?"""
        return bool(self.tls_cert)

    @model_validator(mode="after")
    def _is_safe(self) -> DashboardSection:
        if bool(self.tls_cert) != bool(self.tls_key):
            raise wrong("tls_cert", "tls_cert and tls_key go together; one of them is missing")
        if self.is_loopback or not self.enabled:
            return self
        if not self.token_file:
            raise wrong(
                "token_file",
                f"{self.host} can be reached by others, so a log-in is needed: name a file for its "
                "token",
            )
        if not (self.has_tls or self.plain_http):
            raise wrong(
                "tls_cert",
                f"{self.host} can be reached by others, and the token would be sent readable: name "
                "a certificate and its key, or set plain_http behind a proxy that adds TLS",
            )
        return self


class AlertsSection(Strict):
    webhook: Annotated[str, Field(pattern=r"^(https?://[^\s]+)?$", max_length=2000)] = ""
    """URL that each alert is posted to, as JSON; empty posts nothing."""
    command: tuple[str, ...] = ()
    """A program and its arguments that is started for each alert, with the alert as JSON on its
    standard input; empty starts nothing."""
    every_s: Annotated[float, Field(ge=1)] = 900.0
    """Least seconds between two alerts of the same kind."""
    idle_share: Fraction = 0.5
    """The learner waits for more than this share of `idle_s`: an alert."""
    idle_s: Annotated[float, Field(ge=1)] = 600.0
    """Seconds over which the learner's waiting is looked at."""
    no_nodes_s: Annotated[float, Field(ge=1)] = 300.0
    """Seconds without any node in session: an alert."""
    rejected_share: Fraction = 0.3
    """More than this share of the last `rejected_of` rollouts or more was rejected: an alert."""
    rejected_of: Annotated[int, Field(ge=1)] = 200
    """Rollouts that are looked at for that."""
    disk_mib: Annotated[int, Field(ge=0)] = 2048
    """Fewer MiB than this are free where the run's folder is: an alert."""
