"""Scored groups that wait for the learner, and who is admitted when a batch is taken.

Admission is decided at the moment of consumption, with the time spent waiting included: a group
whose lag would exceed S is taken out and returned, so that the caller records it, and is never
trained on. Otherwise the stalest go first (lowest version, then order of arrival), because they
are the next to become useless. Every group that was added leaves exactly once.

Blank groups, of which an update would learn nothing, may be kept apart: they are in no batch and
keep no lease from anybody, and leave beside the next update. Only so many of them: the rest is
like any other group, so that a learner that would wait for better ones goes on.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection
from dataclasses import dataclass

from echo_hub.learner.messages import TrainGroup, TrainRollout


@dataclass(frozen=True)
class ScoredGroup:
    """A group that passed every check. `group_id` is its row in the ledger, `arm` the number of
    what its prompt was drawn from."""

    group_id: int
    lease_id: bytes
    node: bytes
    version: int
    prompt: list[int]
    rollouts: list[TrainRollout]
    arm: int = 0

    def for_learner(self) -> TrainGroup:
        """What the learner process is sent of it."""
        return TrainGroup(self.version, self.prompt, self.rollouts, self.arm)


class Buffer:
    """The groups that wait, by version."""

    def __init__(self, *, most_blank: int = 0) -> None:
        self._by_version: dict[int, deque[ScoredGroup]] = {}
        self._blank: list[ScoredGroup] = []
        self._most_blank = most_blank

    def __len__(self) -> int:
        """Those that a batch may be made of."""
        return sum(len(groups) for groups in self._by_version.values())

    def versions(self) -> Counter[int]:
        """How many groups wait, by the version that sampled them."""
        return Counter({version: len(groups) for version, groups in self._by_version.items()})

    def add(self, group: ScoredGroup, *, blank: bool = False) -> None:
        """Put a group in."""
        if blank and len(self._blank) < self._most_blank:
            self._blank.append(group)
            return
        self._by_version.setdefault(group.version, deque()).append(group)

    def take(
        self, count: int, version: int, staleness: int
    ) -> tuple[list[ScoredGroup] | None, list[ScoredGroup]]:
        """A batch of `count` groups for the update from `version`, and the groups now too stale.

        The batch is None, and nothing admissible is taken, while fewer than `count` wait.
        """
        stale = self._take_out(lambda group: version - group.version > staleness)
        if len(self) < count:
            return None, stale
        batch: list[ScoredGroup] = []
        for oldest in sorted(self._by_version):
            groups = self._by_version[oldest]
            while groups and len(batch) < count:
                batch.append(groups.popleft())
        self._forget_empty()
        return batch, stale

    def blank(self) -> list[ScoredGroup]:
        """The blank groups that wait."""
        return list(self._blank)

    def take_blank(
        self, version: int, staleness: int
    ) -> tuple[list[ScoredGroup], list[ScoredGroup]]:
        """The blank groups that the update from `version` leaves out, and those now too stale."""
        taken, self._blank = self._blank, []
        stale = [group for group in taken if version - group.version > staleness]
        return [group for group in taken if version - group.version <= staleness], stale

    def evict(self, node: bytes) -> list[ScoredGroup]:
        """Take out everything a node handed in."""
        blank = [group for group in self._blank if group.node == node]
        self._blank = [group for group in self._blank if group.node != node]
        return self._take_out(lambda group: group.node == node) + blank

    def withdraw(self, versions: Collection[int]) -> list[ScoredGroup]:
        """Take out everything that these versions sampled."""
        blank = [group for group in self._blank if group.version in versions]
        self._blank = [group for group in self._blank if group.version not in versions]
        return self._take_out(lambda group: group.version in versions) + blank

    def _take_out(self, unwanted: Callable[[ScoredGroup], bool]) -> list[ScoredGroup]:
        out: list[ScoredGroup] = []
        for version, groups in self._by_version.items():
            out.extend(group for group in groups if unwanted(group))
            self._by_version[version] = deque(group for group in groups if not unwanted(group))
        self._forget_empty()
        return out

    def _forget_empty(self) -> None:
        self._by_version = {v: groups for v, groups in self._by_version.items() if groups}
