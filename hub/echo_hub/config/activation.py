"""`[activation]`: which nodes work and which are on standby, and whom to ask for more."""

from __future__ import annotations

import ipaddress
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from echo_p2p.toml import Strict


class ActivationSection(Strict):
    mode: Literal["advise", "on", "off"] = "advise"
    """`on`: the cheapest nodes that keep the learner busy work, the others are on standby. `advise`
    only shows whom it would choose, and all work; `off` does not even look."""
    prices: str = ""
    """TOML file with `[prices]`, money an hour by peer id; read again when it changes. Nodes that
    are not in it are volunteers. A path that is not absolute starts at the run's folder."""
    headroom: Annotated[float, Field(ge=0, le=10)] = 0.15
    """Rate to keep beyond what the learner needs, as a share of that."""
    dwell_s: Annotated[float, Field(ge=0, le=86400)] = 300.0
    """Least seconds between two changes of a node, unless the learner would have to wait."""
    settle_s: Annotated[float, Field(ge=0, le=86400)] = 60.0
    """Seconds for which a cheaper set must have been cheaper before it is taken."""
    turn_s: Annotated[float, Field(ge=60, le=30 * 86400)] = 1800.0
    """Seconds after which a volunteer on standby takes the place of one at work."""
    decide_s: Annotated[float, Field(ge=0.1, le=600)] = 10.0
    """Seconds between two looks."""
    scale_command: tuple[str, ...] = ()
    """A program and its arguments, started when nodes are missing or rented ones idle, with the
    wish as JSON on its standard input; empty starts nothing."""
    scale_webhook: Annotated[str, Field(max_length=2000)] = ""
    """https URL, or one of this machine, that the wish is posted to; empty posts nothing."""
    scale_after_s: Annotated[float, Field(ge=0, le=86400)] = 120.0
    """Seconds for which nodes must have been missing before `scale_up`."""
    scale_down_after_s: Annotated[float, Field(ge=0, le=86400)] = 900.0
    """Seconds on standby after which a rented node is named in `scale_down`."""
    scale_every_s: Annotated[float, Field(ge=1, le=86400)] = 300.0
    """Least seconds between two wishes; longer than a rented node takes to start."""

    @field_validator("scale_webhook")
    @classmethod
    def _is_safe(cls, value: str) -> str:
        if value and not _is_safe_url(value):
            raise ValueError("an https:// URL is wanted, or http:// on this machine (127.0.0.1)")
        return value


def _is_safe_url(value: str) -> bool:
    try:
        parts = urlsplit(value)
        host = parts.hostname
        _ = parts.port
    except ValueError:
        return False
    if not host or any(character.isspace() for character in value):
        return False
    if parts.scheme == "https":
        return True
    if parts.scheme != "http":
        return False
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
