"""One evaluation: the held-out prompts of a version, and the rewards of their answers as they come.

Pure. A prompt whose answer could not be scored is asked again; after three failures it is left
out, because a failure to score is not a reward of zero. Of what was answered there is a mean with
its 95 % interval: Wilson's where every reward is 0 or 1, and a bootstrap's over the prompts
otherwise. It says how far chance in prompts and in sampling may be to blame, and nothing of what
was left out.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

_MOST_FAILURES = 3
_Z = 1.959964  # of the normal distribution, 95 %
_RESAMPLES = 2000
_MOST_AT_ONCE = 2_000_000  # numbers drawn at once


@dataclass(frozen=True)
class Estimate:
    """A mean reward, and the ends of its 95 % interval."""

    reward: float
    low: float
    high: float
    prompts: int

    def __str__(self) -> str:
        return f"{self.reward:.3f} ({self.low:.3f} to {self.high:.3f})"


@dataclass(frozen=True)
class Evaluated:
    """What an evaluation of a version found: of all prompts, and of each task's by its name."""

    version: int
    all: Estimate
    tasks: Mapping[str, Estimate]

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values: the fields of `all`, and `tasks`."""
        tasks = {name: asdict(one) for name, one in self.tasks.items()}
        return {"version": self.version, **asdict(self.all), "tasks": tasks}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Evaluated:
        """The inverse of `as_dict`."""
        tasks = {name: Estimate(**one) for name, one in values["tasks"].items()}
        names = ("reward", "low", "high", "prompts")
        return cls(values["version"], Estimate(**{name: values[name] for name in names}), tasks)


def estimate(rewards: Sequence[float]) -> Estimate:
    """The mean of one reward or more, with its interval."""
    values = np.asarray(rewards, dtype=np.float64)
    mean, count = float(values.mean()), len(values)
    if np.isin(values, (0.0, 1.0)).all():
        low, high = _wilson(mean, count)
    else:
        low, high = _bootstrap(values)
    return Estimate(mean, low, high, count)


def _wilson(share: float, count: int) -> tuple[float, float]:
    z2 = _Z * _Z
    middle = (share + z2 / (2 * count)) / (1 + z2 / count)
    spread = math.sqrt(share * (1 - share) / count + z2 / (4 * count * count))
    half = _Z * spread / (1 + z2 / count)
    # at a share of 0 or 1 an end is exactly there, which rounding would miss
    return min(share, max(0.0, middle - half)), max(share, min(1.0, middle + half))


def _bootstrap(values: np.ndarray[Any, np.dtype[np.float64]]) -> tuple[float, float]:
    rng, means, count = np.random.default_rng(0), [], len(values)
    at_once = max(1, _MOST_AT_ONCE // count)
    for start in range(0, _RESAMPLES, at_once):
        rows = min(at_once, _RESAMPLES - start)
        means.append(values[rng.integers(count, size=(rows, count))].mean(axis=1))
    low, high = np.quantile(np.concatenate(means), (0.025, 0.975))
    return float(low), float(high)


class Evaluation:
    """The held-out prompts 0..`prompts`-1 under one version, `names` of the tasks in turn."""

    def __init__(self, version: int, prompts: int, names: Sequence[str] = ("",)) -> None:
        self.version = version
        self.group_ids: list[int] = []
        self._names = names
        self._prompts = prompts
        self._waiting = set(range(prompts))
        self._rewards: dict[int, float] = {}
        self._failures: Counter[int] = Counter()

    @property
    def finished(self) -> bool:
        """Every prompt is answered or left out."""
        return not self._waiting

    @property
    def answered(self) -> int:
        """Prompts with a reward."""
        return len(self._rewards)

    @property
    def rewards(self) -> list[float]:
        """Mean reward of each answered prompt, in the order of the prompts."""
        return [self._rewards[index] for index in sorted(self._rewards)]

    def outcome(self) -> Evaluated | None:
        """What was found; None if hardly half of the prompts were, or could be, answered."""
        if not self._rewards or not (self.finished or 2 * self.answered >= self._prompts):
            return None
        by_task: dict[str, list[float]] = {}
        for index, reward in sorted(self._rewards.items()):
            by_task.setdefault(self._names[index % len(self._names)], []).append(reward)
        tasks = {name: estimate(rewards) for name, rewards in by_task.items()}
        return Evaluated(self.version, estimate(self.rewards), tasks)

    def answer(self, index: int, group_id: int, rewards: list[float]) -> None:
        """A prompt's answers were scored."""
        self._waiting.discard(index)
        self._rewards[index] = sum(rewards) / len(rewards)
        self.group_ids.append(group_id)

    def fail(self, index: int) -> bool:
        """A prompt's answers were not fit to be counted. True if it is to be asked again."""
        self._failures[index] += 1
        if self._failures[index] < _MOST_FAILURES:
            return True
        self.leave_out(index)
        return False

    def leave_out(self, index: int) -> None:
        """A prompt that cannot be asked or scored at all."""
        self._waiting.discard(index)
