"""Nodes, and what an operator says of them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import StringConstraints

from echo_hub.api.models.base import Model, Sentence

Standing = Literal["newcomer", "proven", "quarantined", "banned"]


class NodeFacts(Model):
    """One node. `rejected` counts rollouts by reason code."""

    node: str
    name: str
    """As the operator named it; empty if not."""
    standing: Standing
    version: int | None
    rate: float
    accepted: int
    rejected_total: int
    rejected: dict[str, int]
    valid: float
    """n: consecutive valid groups, decayed."""
    audit_probability: float
    suspicion: float
    """From 0, nothing, to 1, condemned."""
    accusers: int
    """Nodes that say it sent them a bad chunk."""
    in_session: bool
    reachable: bool | None
    """Whether it says that others can dial it; None if it has not greeted since the hub started."""
    software: str
    engine: str
    first_seen: float | None
    last_seen: float | None
    why: str
    """Why it is banned or quarantined; empty if it is not."""


class NodeDetail(NodeFacts):
    note: str
    addresses: list[str]
    trained_groups: int
    disputed_groups: int
    audited_tokens: int


class NodePage(Model):
    total: int
    """All that match."""
    offset: int
    nodes: list[NodeFacts]


class BanRequest(Model):
    why: Sentence = "the operator decided so."
    """Told to the node."""


class Annotation(Model):
    """The operator's own words for a node. `name` is shown on the public leader board."""

    name: Annotated[str, StringConstraints(max_length=60, strip_whitespace=True)] = ""
    note: Annotated[str, StringConstraints(max_length=2000)] = ""
