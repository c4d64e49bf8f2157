"""Groups of rollouts, down to their tokens."""

from __future__ import annotations

from echo_hub.api.models.base import Model


class AuditFacts(Model):
    """What deriving a group again found; differences in nats, margins in units of the logits."""

    max_margin: float
    max_logprob_difference: float
    mismatches: int
    tokens: int


class GroupFacts(Model):
    """A group in a list. `trace` is the id that follows it from lease to update."""

    group: int
    trace: str
    node: str
    task: str
    split: str
    prompt_index: int
    version: int
    state: str
    reason: str | None
    rewards: list[float] | None
    update: int | None
    received_at: float
    audited: bool
    disputed: bool
    excerpt: str
    """The beginning of its best answer."""


class GroupPage(Model):
    groups: list[GroupFacts]
    next_before: int | None
    """Pass it as `before` for the next page; None at the end."""
    scanned: int


class Rollout(Model):
    """One answer: its tokens as text pieces with the log-probability of each (raw, temperature 1).
    `observed` are half-open spans of tokens that an environment wrote."""

    text: str
    tokens: list[str]
    logprobs: list[float]
    observed: list[tuple[int, int]]
    finish: str
    reward: float | None
    advantage: float | None


class GroupDetail(GroupFacts):
    prompt: str
    rollouts: list[Rollout]
    audit: AuditFacts | None
    sentence: str
    """Why it was dropped; empty if it was not."""
