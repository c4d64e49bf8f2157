"""What a simulation is given and what it gives: changes of the world, a controller, a result."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Protocol


class Controller(Protocol):
    """Who is active. Called in the order of simulated time, with the nodes' keys."""

    def joined(self, key: str, now: float) -> None:
        """A node is there."""

    def left(self, key: str, now: float) -> None:
        """A node is gone."""

    def worked(self, key: str, groups: int, busy_s: float, now: float) -> None:
        """Groups were finished that kept the whole node busy for so long.

        A group that took L on a node that does h at a time kept it busy for L / h, whatever else
        it had to do: so a node that is given little work is not taken for a slow one.
        """

    def fetched(self, key: str, seconds: float, now: float) -> None:
        """A node took so long to have a published version."""

    def trained(self, seconds: float, now: float) -> None:
        """An update took the learner so long."""

    def decide(self, now: float) -> frozenset[str]:
        """The keys of the nodes that shall work."""


@dataclass
class World:
    """What can change while a simulation runs: factors on what the run and the nodes say."""

    train: float = 1.0
    links: float = 1.0
    gone: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Change:
    """From the start of this update on, the world is so."""

    update: int
    world: World


@dataclass(frozen=True)
class Result:
    """What happened after the first `warm_up` updates."""

    updates: int
    seconds: float
    waited_s: float
    money: float
    lags: Counter[int]
    stale: int
    waits: tuple[float, ...]
    """Seconds waited before each update, the warm-up's too."""
    busy: tuple[float, ...]
    """Seconds of each update, the warm-up's too."""
    switched: tuple[tuple[float, str], ...]
    """When which node, in which of its stays, was made active or put on standby."""
    starts: tuple[float, ...]
    """When each update began, the warm-up's too."""

    @property
    def idle(self) -> float:
        """Share of the time that the learner waited."""
        return self.waited_s / self.seconds if self.seconds else 0.0

    @property
    def seconds_per_update(self) -> float:
        """Mean time from one update to the next."""
        return self.seconds / self.updates if self.updates else math.inf
