"""When an operator should be told that something is wrong. Pure: `look` is given what is so now.

An alert is raised once when its condition has held long enough, and again only after `every_s`,
however often it comes and goes. It is shown as long as it holds, and what only happens (a return to
an earlier version) for `SHOWN_S`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from echo_hub.api.models import Alert
from echo_hub.config.dashboard import AlertsSection

SHOWN_S = 3600.0
_MIB = 1 << 20


@dataclass(frozen=True)
class Readings:
    """What is so at `now` (monotonic seconds; `at` in Unix seconds).

    `active`: updates are wanted, and nobody paused the run. `accepted` and `rejected` count the
    rollouts of the last minutes; `rolled_back` has the details of returns since the last look.
    """

    now: float
    at: float
    waiting: bool = False
    active: bool = True
    nodes: int = 0
    accepted: int = 0
    rejected: int = 0
    rolled_back: Sequence[Mapping[str, Any]] = ()
    paused: str | None = None
    disk_free: int = 1 << 62


@dataclass
class _Held:
    since: float
    at: float
    sentence: str
    until: float | None = None


class Alarms:
    """The alerts of one hub."""

    def __init__(self, rules: AlertsSection) -> None:
        self._rules = rules
        self._waits: deque[tuple[float, bool]] = deque()
        self._no_nodes_since: float | None = None
        self._held: dict[str, _Held] = {}
        self._raised: dict[str, float] = {}

    def look(self, read: Readings) -> list[Alert]:
        """The alerts to be sent now."""
        found = self._conditions(read)
        for kind in [one for one, held in self._held.items() if held.until is None]:
            if kind not in found:
                del self._held[kind]
        for kind in [
            one for one, held in self._held.items() if (held.until or read.now) < read.now
        ]:
            del self._held[kind]
        raised = []
        for kind, sentence in found.items():
            held = self._held.setdefault(kind, _Held(read.now, read.at, sentence))
            held.sentence = sentence
            raised += self._raise(kind, held, read.now)
        for detail in read.rolled_back:
            sentence = (
                f"The learner went back: version {detail.get('version')} has the weights of "
                f"version {detail.get('to')}."
            )
            held = _Held(read.now, read.at, sentence, read.now + SHOWN_S)
            self._held["rolled_back"] = held
            raised += self._raise("rolled_back", held, read.now)
        return raised

    def shown(self) -> list[Alert]:
        """What is wrong now, the oldest first."""
        held = sorted(self._held.items(), key=lambda one: one[1].at)
        return [self._alert(kind, one) for kind, one in held]

    def _raise(self, kind: str, held: _Held, now: float) -> list[Alert]:
        last = self._raised.get(kind)
        if last is not None and (now - last < self._rules.every_s or held.since <= last):
            return []
        self._raised[kind] = now
        return [self._alert(kind, held)]

    @staticmethod
    def _alert(kind: str, held: _Held) -> Alert:
        return Alert(kind=kind, sentence=held.sentence, since=held.at, active=held.until is None)

    def _conditions(self, read: Readings) -> dict[str, str]:
        rules, found = self._rules, {}
        if read.paused is not None:
            found["paused"] = f"The run is paused: {read.paused}"
        if read.disk_free < rules.disk_mib * _MIB:
            found["disk"] = f"Only {read.disk_free // _MIB} MiB are free where the run's folder is."
        idle = self._idle(read)
        if idle is not None and idle > rules.idle_share:
            found["learner_idle"] = (
                f"The learner waited for {idle:.0%} of the last {rules.idle_s:.0f} s."
            )
        if read.nodes or not read.active:
            self._no_nodes_since = None
        elif self._no_nodes_since is None:
            self._no_nodes_since = read.now
        elif read.now - self._no_nodes_since >= rules.no_nodes_s:
            found["no_nodes"] = f"No node has been connected for {rules.no_nodes_s:.0f} s."
        judged = read.accepted + read.rejected
        if judged >= rules.rejected_of and read.rejected > rules.rejected_share * judged:
            share = read.rejected / judged
            found["rejections"] = f"{share:.0%} of the last {judged} rollouts were rejected."
        return found

    def _idle(self, read: Readings) -> float | None:
        """Share of the last `idle_s` that the learner waited; None before so much is known."""
        self._waits.append((read.now, read.waiting and read.active))
        while len(self._waits) > 1 and self._waits[1][0] <= read.now - self._rules.idle_s:
            self._waits.popleft()
        span = read.now - self._waits[0][0]
        if span < self._rules.idle_s:
            return None
        times = [at for at, _ in self._waits]
        waited = sum(
            after - before
            for before, after, (_, waits) in zip(times, times[1:], self._waits, strict=False)
            if waits
        )
        return waited / span
