"""The capacity model without its simplifications: groups on slots, each as early as it may be.

A recursion over updates, deterministic and without a clock. A group begins as soon as a slot of
its node is free, the lease rule allows it (with `ahead` groups before it, at `v + ahead // B`, a
version of at most S before that must have reached the node), and its node is neither away nor, if
it pauses for that, downloading. A batch is taken when B admissible groups are through their
checks. What is rejected, too late, or lost with its node counts as ahead until that is known, as
in the lease book. Chance is spread evenly instead of drawn: lengths run through their quantiles in
a low-discrepancy order, rejections and departures come at their mean distances. So the same fleet
always has the same answer, and no two calls differ by luck.
"""

from __future__ import annotations

import bisect
import heapq
import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from echo_hub.planner.system import (
    UNLIMITED,
    Churn,
    Node,
    Run,
    broadcast_bound,
    group_seconds,
    longest_of,
)

_GOLDEN = (math.sqrt(5) - 1) / 2
_MOST_SLOTS = 512
UPDATES, WARM_UP = 150, 30
_HOPELESS = 50  # groups begun for one that counts


@dataclass(frozen=True)
class Prediction:
    """What the recursion says will happen."""

    seconds_per_update: float
    idle: float
    lags: Counter[int]
    wasted: float
    """Share of the groups begun that come to nothing: rejected, too late, lost with their node."""

    @property
    def lag_mean(self) -> float:
        """Mean lag of what is trained on, in versions."""
        return sum(lag * count for lag, count in self.lags.items()) / max(1, self.lags.total())


def predict(
    run: Run, nodes: Sequence[Node], churn: Churn | None = None, *, updates: int = UPDATES
) -> Prediction:
    """Idle fraction, lags and waste of this fleet; a fleet without a rate is always waited for."""
    working = [node for node in nodes if node.rate]
    if not working:
        return Prediction(UNLIMITED, 1.0, Counter(), 0.0)
    return _Schedule(run, working, churn or Churn()).play(updates)


@dataclass(eq=False)
class _Host:
    """A node, as the recursion keeps it."""

    group_s: float
    download: float
    leaves: float
    """When it leaves for the first time."""
    busy_from: float = 0.0
    until: float = 0.0
    """From when until when it downloads without a break, for the last time so far."""
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    """When it had which version, in order."""
    queued: float = -1.0
    """Begin of a download that waits for another one."""


class _Schedule:
    def __init__(self, run: Run, nodes: Sequence[Node], churn: Churn) -> None:
        self._run, self._churn = run, churn
        slots = sum(node.groups for node in nodes)
        step = max(1.0, slots / _MOST_SLOTS)
        ordered = sorted(nodes, key=lambda node: node.rate)
        kept = [ordered[int(i * step)] for i in range(max(1, int(len(ordered) / step)))]
        share = sum(node.rate for node in kept) / sum(node.rate for node in nodes)
        self._batch = max(1, round(run.groups * share))
        stretch = self._batch / (run.groups * share)  # what the rounding has taken
        self._hosts = [self._host(node, nodes, i, stretch) for i, node in enumerate(kept)]
        # slots: when to look at one again, its host, and since when it is free
        self._free: list[tuple[float, int, float]] = []
        for index, node in enumerate(kept):
            # a lease book's pace: no more than can be answered in half of a lease's time
            slow = self._hosts[index].group_s > run.lease_s / 2
            self._free += [(0.0, index, 0.0)] * (1 if slow else node.groups)
        heapq.heapify(self._free)
        mean, deviation = longest_of(run.group_size, run.spread)
        self._sigma = math.sqrt(math.log1p((deviation / mean) ** 2))
        self._rng = random.Random(0)
        self._begun = self._good = 0
        self._rejects = self._silents = 0.0
        self._lost: list[float] = []  # when it is known of lost groups, sorted
        self._trained_at = [0.0]
        self._done: list[tuple[float, int, int]] = []  # end of checks, version, host
        self._publish()

    def _host(self, node: Node, nodes: Sequence[Node], index: int, stretch: float) -> _Host:
        run, churn = self._run, self._churn
        together = broadcast_bound(
            run.artifact,
            hub_up=run.hub_up,
            ups=[other.up for other in nodes],
            downs=[UNLIMITED],
        )
        download = max(together, run.artifact / node.down)
        if run.broadcast_s is not None:
            download = run.broadcast_s
        leaves = UNLIMITED
        if not math.isinf(churn.stay_s):
            leaves = ((index + 0.5) * _GOLDEN % 1.0) * (churn.stay_s + churn.away_s)
        return _Host(group_seconds(run, node) / stretch, download, leaves)

    def play(self, updates: int) -> Prediction:
        run = self._run
        lags: list[Counter[int]] = []
        for version in range(updates):
            lags.append(self._take(version))
            if math.isinf(self._trained_at[-1]):
                return Prediction(UNLIMITED, 1.0, Counter(), 1.0)
        warm_up = min(WARM_UP, updates // 2)
        total: Counter[int] = Counter()
        for lag in lags[warm_up:]:
            total.update(lag)
        period = (self._trained_at[-1] - self._trained_at[warm_up]) / (updates - warm_up)
        wasted = 1 - self._good / max(1, self._begun)
        return Prediction(period, max(0.0, 1 - run.train_s / period), total, wasted)

    # --- versions -----------------------------------------------------------------------------

    def _publish(self) -> None:
        """The newest version is published: hosts fetch it, one download after the other."""
        version, now = len(self._trained_at) - 1, self._trained_at[-1]
        shifts: dict[int, tuple[float, float]] = {}
        for index, host in enumerate(self._hosts):
            if host.queued >= now and host.arrivals:  # what waits fetches the newest
                host.arrivals[-1] = (host.arrivals[-1][0], version)
                continue
            begin = max(now, host.until)
            if begin == now:
                host.busy_from = now
            host.queued = begin if begin > now else -1.0
            host.until = begin + host.download
            host.arrivals.append((host.until, version))
            shifts[index] = (begin, host.download)
        self._free = [(free, index, free) for _, index, free in self._free]
        heapq.heapify(self._free)
        if self._run.pauses:
            self._shift(shifts)

    def _shift(self, shifts: dict[int, tuple[float, float]]) -> None:
        """All that a host does after the begin of a download happens later by its length."""
        check = self._run.check_s

        def later(when: float, index: int) -> float:
            begin, seconds = shifts.get(index, (UNLIMITED, 0.0))
            return when + seconds if when > begin else when

        moved = [(later(free, index), index) for _, index, free in self._free]
        self._free = [(free, index, free) for free, index in moved]
        self._done = [
            (later(end - check, index) + check, version, index)
            for end, version, index in self._done
        ]
        heapq.heapify(self._free)
        heapq.heapify(self._done)

    # --- groups -------------------------------------------------------------------------------

    def _place(self, before: float) -> None:
        """Take the slot that is free first, and begin a group on it if that may be before then.

        Otherwise it is looked at again when one may, and after the next publication anyway.
        """
        run, churn = self._run, self._churn
        when, index, free = heapq.heappop(self._free)
        host = self._hosts[index]
        start, version, leaves = self._earliest(when, host)
        if math.isinf(start) or (start >= before and start > when):
            heapq.heappush(self._free, (start, index, free))
            return
        end = start + host.group_s * self._length()
        if run.pauses and start < host.busy_from < end:
            end += host.until - host.busy_from
        self._begun += 1
        if leaves < end:  # lost with its node, which comes back
            self._silents += churn.silent
            silent = self._silents >= 1
            self._silents -= silent
            bisect.insort(self._lost, start + run.lease_s if silent else leaves)
            back = leaves + churn.away_s + host.download
            heapq.heappush(self._free, (back, index, back))
            return
        heapq.heappush(self._free, (end, index, end))
        self._rejects += run.rejected
        if end - start > run.lease_s:
            bisect.insort(self._lost, start + run.lease_s)
        elif self._rejects >= 1:
            self._rejects -= 1
            bisect.insort(self._lost, end + run.check_s)
        else:
            heapq.heappush(self._done, (end + run.check_s, version, index))
            self._good += 1

    def _earliest(self, free: float, host: _Host) -> tuple[float, int, float]:
        """When a group may begin on a slot, with which version, and when its node leaves next.

        Never, as far as is known, if it has to wait for a version that is not trained yet.
        """
        run = self._run
        start = free
        while True:
            if run.pauses and host.busy_from <= start < host.until:
                start = host.until
            start, leaves = self._stay(host, start)
            unknown = len(self._lost) - bisect.bisect_right(self._lost, start)
            wanted = (self._good + unknown) // self._batch - run.staleness
            ready = self._has(host, wanted)
            if ready is not None and ready <= start:
                return start, self._version(host, start), leaves
            known = self._lost[-unknown] if unknown else UNLIMITED
            if ready is None and not unknown:
                return UNLIMITED, 0, UNLIMITED
            start = min(known, ready if ready is not None else UNLIMITED)

    def _stay(self, host: _Host, when: float) -> tuple[float, float]:
        """The first time from then on at which the node is there with a version, and its end."""
        if when < host.leaves:
            return when, host.leaves
        away = self._churn.away_s + host.download
        cycle = self._churn.stay_s + self._churn.away_s
        phase = (when - host.leaves) % cycle
        start = when + max(0.0, away - phase)
        return start, when - phase + cycle

    def _has(self, host: _Host, wanted: int) -> float | None:
        """When a host has a version of at least `wanted`; None if it is not trained yet."""
        if wanted <= 0:
            return host.arrivals[0][0]
        at = bisect.bisect_left(host.arrivals, wanted, key=lambda arrival: arrival[1])
        return host.arrivals[at][0] if at < len(host.arrivals) else None

    def _version(self, host: _Host, when: float) -> int:
        """The newest version a host has then."""
        at = bisect.bisect_right(host.arrivals, when, key=lambda arrival: arrival[0])
        return host.arrivals[max(0, at - 1)][1]

    def _length(self) -> float:
        """A group's length in means."""
        return self._rng.lognormvariate(-(self._sigma**2) / 2, self._sigma) if self._sigma else 1.0

    # --- updates ------------------------------------------------------------------------------

    def _take(self, version: int) -> Counter[int]:
        """Train from `version` as soon as B admissible groups are there; their lags."""
        run = self._run
        begin, batch = self._trained_at[version], Counter[int]()
        most = self._begun + _HOPELESS * (self._batch + len(self._free))
        while batch.total() < self._batch:
            if self._begun > most:  # whatever is begun is lost
                begin = UNLIMITED
                break
            next_end = self._done[0][0] if self._done else UNLIMITED
            if self._free and self._free[0][0] < next_end:
                self._place(next_end)
                continue
            if not self._done:
                begin = UNLIMITED
                break
            end, sampled, _ = heapq.heappop(self._done)
            if version - sampled > run.staleness:
                bisect.insort(self._lost, end)
                self._good -= 1
                continue
            batch[version - sampled] += 1
            begin = max(begin, end)
        end = begin + run.train_s
        while not math.isinf(end) and self._free and self._free[0][0] < end:
            self._place(end)
        self._trained_at.append(end)
        if (version + 1) % run.kappa == 0 and not math.isinf(begin):
            self._publish()
        return batch
