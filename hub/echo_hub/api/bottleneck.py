"""Which part of a run holds the others up, in one sentence. Pure.

The learner is the one that should never wait: while it is busy, it is the limit, and nothing is
wrong. When it waits, the first of these that is so explains it, in this order: nobody works; what
was made is thrown away, as stale or for another reason; groups pile up where they are scored, or
audited; versions take longer to reach the nodes than the staleness hides; there is too little of
everything: nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Limit = Literal[
    "none", "starting", "paused", "complete", "nodes", "scoring", "audit", "learner", "broadcast",
    "staleness", "rejections", "disk",
]  # fmt: skip

IDLE = 0.1
"""A learner that waits for no more than this share of its time is busy."""
SHARE = 0.25
"""A share of rejected rollouts from which on they are the limit."""


@dataclass(frozen=True)
class Signs:
    """What is measured now. Rates in rollouts a second, times in seconds, groups counted.

    `idle` is the learner's share of waiting over its last updates, None before there are two;
    `auditing` its share of audits. `rejected` counts the rollouts of late by reason code, with
    `accepted` beside them. `checking` groups are being scored or audited; `audits_wait` of those
    have their reward. `spread_s` is how long a version took to reach the nodes, `hides_s` how long
    S and kappa allow.
    """

    version: int = 0
    paused: str | None = None
    complete: bool = False
    idle: float | None = None
    auditing: float = 0.0
    nodes_in_session: int = 0
    nodes_working: int = 0
    needed: float | None = None
    had: float = 0.0
    accepted: int = 0
    rejected: Mapping[str, int] = field(default_factory=dict)
    checking: int = 0
    audits_wait: int = 0
    groups_per_update: int = 1
    staleness: int = 0
    spread_s: float | None = None
    hides_s: float | None = None
    disk_free: int | None = None
    disk_needed: int = 0


@dataclass(frozen=True)
class Found:
    """What limits, and what an operator can do about it."""

    limit: Limit
    sentence: str
    fix: str = ""


def bottleneck(signs: Signs) -> Found:
    """What limits the run now."""
    return _not_running(signs) or _busy(signs) or _thrown_away(signs) or _piled_up(signs) or _slow(
        signs
    )  # fmt: skip


def _not_running(signs: Signs) -> Found | None:
    if signs.complete:
        return Found("complete", f"The run is complete, at version {signs.version}.")
    if signs.paused is not None:
        return Found(
            "paused", f"The run is paused: {signs.paused}", "Find the cause, then let it go on."
        )
    if signs.disk_free is not None and signs.disk_free < signs.disk_needed:
        return Found(
            "disk",
            f"Only {signs.disk_free / 2**20:.0f} MiB are free on the disk.",
            "Free some, or the run stops when it is full.",
        )
    if signs.nodes_in_session == 0 and not signs.had:
        return Found(
            "nodes", "No node is connected, so nobody generates rollouts.", "Invite volunteers."
        )
    return None


def _busy(signs: Signs) -> Found | None:
    if signs.idle is None:
        return Found("starting", "The first updates are being made; nothing is known yet.")
    if signs.idle > IDLE:
        return None
    if signs.auditing > 0.5:
        return Found(
            "audit",
            f"The learner audits for {signs.auditing:.0%} of its time: many groups are of nodes "
            "without standing.",
            "It falls as nodes earn standing; audit.probation says how fast.",
        )
    words = f"The learner is busy: it waits for {signs.idle:.0%} of its time."
    if signs.needed and signs.had > 1.5 * signs.needed:
        words += f" Nodes could give {signs.had / signs.needed:.1f} times what it takes."
        return Found("learner", words, "Only a faster learner would make the run faster.")
    return Found("none", words)


def _thrown_away(signs: Signs) -> Found | None:
    total = signs.accepted + sum(signs.rejected.values())
    if not total:
        return None
    stale = sum(signs.rejected.get(code, 0) for code in ("stale", "withdrawn"))
    if stale / total > SHARE:
        return Found(
            "staleness",
            f"{stale / total:.0%} of the rollouts come too late: they are more than S = "
            f"{signs.staleness} versions old.",
            "Raise learner.staleness, or publish more often (publish.every).",
        )
    others = {code: n for code, n in signs.rejected.items() if code not in ("stale", "withdrawn")}
    share = sum(others.values()) / total
    if share > SHARE:
        worst = max(others, key=lambda code: others[code])
        return Found(
            "rejections",
            f"{share:.0%} of the rollouts are rejected, most of them as {worst}.",
            "The page of nodes says whose they are, and of what kind.",
        )
    return None


def _piled_up(signs: Signs) -> Found | None:
    if signs.checking < max(2, signs.groups_per_update // 2):
        return None
    if signs.audits_wait * 2 > signs.checking or signs.auditing > 0.5:
        return Found(
            "audit",
            f"{signs.checking} groups wait for their audit, and the learner for them.",
            "It falls as nodes earn standing; a faster learner audits faster too.",
        )
    return Found(
        "scoring",
        f"{signs.checking} groups wait for their reward, and the learner for them.",
        "Raise scoring.processes, or make the task's reward cheaper.",
    )


def _slow(signs: Signs) -> Found:
    idle = signs.idle or 0.0
    if (
        signs.spread_s is not None
        and signs.hides_s is not None
        and signs.spread_s > signs.hides_s
        and (signs.needed is None or signs.spread_s > 0.25 * signs.hides_s + 1e-9)
    ):
        return Found(
            "broadcast",
            f"A version takes {signs.spread_s:.3g} s to reach the nodes; S and kappa hide "
            f"{signs.hides_s:.3g} s, so the learner waits for {idle:.0%} of its time.",
            "Raise network.max_upload or learner.staleness, or take a smaller adapter rank.",
        )
    if signs.needed is None or signs.had >= signs.needed:
        return Found(
            "nodes",
            f"The learner waits for {idle:.0%} of its time though rollouts come fast enough of "
            "late: too many come at once, and then none.",
            "More staleness evens it out (learner.staleness); so do more, smaller nodes.",
        )
    return Found(
        "nodes",
        f"Too few nodes: {signs.nodes_working} give {signs.had:.3g} rollouts/s, and the learner "
        f"could take {signs.needed:.3g}; it waits for {idle:.0%} of its time.",
        f"About {_more(signs)} more nodes like these would keep it busy.",
    )


def _more(signs: Signs) -> int:
    each = signs.had / max(1, signs.nodes_working)
    missing = (signs.needed or 0.0) - signs.had
    return max(1, round(missing / each)) if each else max(1, signs.nodes_working)
