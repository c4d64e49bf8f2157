"""How each artifact spread: which nodes have it after how long, and who sent it to them. Pure.

A node counts once for an artifact, when the hub hears from it that it has the whole. The time of an
adapter is counted from its announcement, for the nodes that were in session then; one that came
later counts among `nodes` and has no time. The base model has been there from the start: its time
is counted from the node's greeting. Times and `hub_bytes` are the hub's own; `from_hub` and
`from_peers` are what nodes say, each held down to twice the artifact's size, and nothing is decided
by them.

Memory: of the base and the `OPEN_VERSIONS` newest adapters, the nodes that have them, `MOST_NODES`
at most; of `MOST_PAST` older ones their totals.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Literal

MOST_NODES = 10_000
"""Of one artifact; further ones are not counted."""
OPEN_VERSIONS = 4
MOST_PAST = 1000
"""Versions, and the base besides."""
SHOWN = 10
"""Versions that a summary has one by one."""


@dataclass(frozen=True)
class Spread:
    """How far one artifact has got. Times in seconds, `at` in Unix seconds, sizes in bytes.

    `expected` nodes were in session when it was announced, and `reached` of them have it: half of
    all after `half_s`, nine tenths after `most_s`, the last of those that do after `last_s`.
    `nodes` counts all that fetched it, `hub_bytes` what the hub sent of it to anybody.
    """

    artifact: bytes
    kind: Literal["base", "adapter"]
    version: int
    size: int
    at: float
    expected: int = 0
    reached: int = 0
    nodes: int = 0
    half_s: float | None = None
    most_s: float | None = None
    last_s: float | None = None
    hub_bytes: int = 0
    from_hub: int = 0
    from_peers: int = 0

    @property
    def everywhere(self) -> bool:
        """All nodes that were in session have it."""
        return 0 < self.expected <= self.reached

    def as_dict(self) -> dict[str, Any]:
        """As programs see it."""
        return {
            "version": self.version,
            "size": self.size,
            "published_at": self.at,
            "nodes_in_session": self.expected,
            "nodes_reached": self.reached,
            "nodes": self.nodes,
            "half_s": _rounded(self.half_s),
            "nine_tenths_s": _rounded(self.most_s),
            "last_s": _rounded(self.last_s),
            "hub_bytes": self.hub_bytes,
            "peer_bytes": self.from_peers,
            "peer_share": _rounded(share_from_peers([self])),
        }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def share_from_peers(spreads: Iterable[Spread]) -> float | None:
    """What peers are said to have sent, of that and what the hub sent; None before any came."""
    hub_bytes = peer_bytes = 0
    for spread in spreads:
        hub_bytes += spread.hub_bytes
        peer_bytes += spread.from_peers
    total = hub_bytes + peer_bytes
    return peer_bytes / total if total else None


def median_last_s(spreads: Iterable[Spread]) -> float | None:
    """Over the adapters that reached all nodes: the median of the time until the last had it."""
    times = [one.last_s for one in spreads if one.kind == "adapter" and one.everywhere]
    return median(time for time in times if time is not None) if times else None


def summary_of(spreads: Iterable[Spread]) -> dict[str, Any]:
    """The run's artifacts taken together, as programs see it."""
    known = list(spreads)
    adapters = sorted((one for one in known if one.kind == "adapter"), key=lambda one: one.version)
    base = next((one for one in known if one.kind == "base"), None)
    return {
        "versions": len(adapters),
        "versions_everywhere": sum(one.everywhere for one in adapters),
        "last_s_median": _rounded(median_last_s(adapters)),
        "peer_share": _rounded(share_from_peers(known)),
        "latest": adapters[-1].as_dict() if adapters else None,
        "recent": [one.as_dict() for one in adapters[-SHOWN:]],
        "base": base.as_dict() if base is not None else None,
    }


def sentence_of(summary: dict[str, Any]) -> str:
    """`summary_of` as people read it."""
    parts = []
    latest, last_s, share = summary["latest"], summary["last_s_median"], summary["peer_share"]
    if latest is not None and latest["nodes_in_session"]:
        reached = f"{latest['nodes_reached']} of {latest['nodes_in_session']} nodes"
        parts.append(f"version {latest['version']} is on {reached}")
    if last_s is not None:
        parts.append(f"versions reach all nodes in {_seconds(last_s)} (median)")
    if share is not None:
        parts.append(f"{share:.0%} of bytes from peers")
    return ", ".join(parts) or "-"


def _seconds(value: float) -> str:
    return f"{value:.0f} s" if value >= 10 else f"{value:.2g} s"


class _Open:
    """An artifact that nodes may still report."""

    def __init__(self, spread: Spread, expected: frozenset[str]) -> None:
        self.spread = spread
        self.expected = expected
        self.seen: set[str] = set()
        self.times: list[float] = []
        self.sent_before = spread.hub_bytes  # by earlier processes of this hub
        self.sent = 0

    def after(self, share: float) -> float | None:
        """When this share of the nodes in session had it; of the base, of those that came."""
        among = self.spread.expected if self.spread.kind == "adapter" else len(self.times)
        needed = max(1, math.ceil(share * among))
        return self.times[needed - 1] if len(self.times) >= needed else None


class Spreads:
    """The base, the newest adapters, and what became of those before.

    Args:
        sent_of: bytes the hub has sent of an artifact since it started; 0 of what is withdrawn.
        known: what the ledger holds.
    """

    def __init__(self, sent_of: Callable[[bytes], int], known: Iterable[Spread] = ()) -> None:
        self._sent_of = sent_of
        self._open: dict[bytes, _Open] = {}
        self._past = deque(known, maxlen=MOST_PAST + 1)
        self._written: dict[bytes, Spread] = {}

    def announce(self, spread: Spread, in_session: Iterable[str]) -> None:
        """An artifact can be had; one that was known before goes on from what is known of it."""
        earlier = next((one for one in self._past if one.artifact == spread.artifact), None)
        if earlier is not None:
            self._past.remove(earlier)
            self._open[spread.artifact] = _Open(earlier, frozenset())
            return
        expected = frozenset(in_session) if spread.kind == "adapter" else frozenset()
        self._open[spread.artifact] = _Open(replace(spread, expected=len(expected)), expected)

    def close_old(self) -> list[Spread]:
        """Only the newest adapters are counted on; the last state of others, for the ledger."""
        adapters = [one for one in self._now() if one.kind == "adapter"]
        adapters.sort(key=lambda one: one.version)
        closed = adapters[:-OPEN_VERSIONS]
        for one in closed:
            del self._open[one.artifact]
            self._written.pop(one.artifact, None)
        self._past.extend(closed)
        return closed

    def obtained(
        self,
        artifact: bytes,
        node: str,
        *,
        from_hub: int,
        from_peers: int,
        greeted_at: float,
        now: float,
    ) -> bool:
        """A node says that it has fetched an artifact; False if that counts for nothing."""
        entry = self._open.get(artifact)
        if entry is None or node in entry.seen or len(entry.seen) >= MOST_NODES:
            return False
        entry.seen.add(node)
        spread, most = entry.spread, 2 * entry.spread.size
        entry.spread = replace(
            spread,
            nodes=spread.nodes + 1,
            from_hub=spread.from_hub + min(from_hub, most),
            from_peers=spread.from_peers + min(from_peers, most),
        )
        if spread.kind == "base" or node in entry.expected:
            since = greeted_at if spread.kind == "base" else spread.at
            insort(entry.times, max(0.0, now - since))
            entry.spread = replace(
                entry.spread,
                reached=len(entry.times),
                half_s=entry.after(0.5),
                most_s=entry.after(0.9),
                last_s=entry.times[-1],
            )
        return True

    def now(self, artifact: bytes) -> Spread | None:
        """What is known of an artifact that is counted."""
        entry = self._open.get(artifact)
        if entry is None:
            return None
        entry.sent = max(entry.sent, self._sent_of(artifact))
        return replace(entry.spread, hub_bytes=entry.sent_before + entry.sent)

    def all(self) -> list[Spread]:
        """What is known of each artifact, oldest first."""
        return [*self._past, *self._now()]

    def _now(self) -> list[Spread]:
        return [one for one in map(self.now, self._open) if one is not None]

    def take_changed(self) -> list[Spread]:
        """What is not as it was at the last call, for the ledger."""
        changed = [one for one in self._now() if self._written.get(one.artifact) != one]
        self._written.update((one.artifact, one) for one in changed)
        return changed
