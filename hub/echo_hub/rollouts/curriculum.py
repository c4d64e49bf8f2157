"""Which prompt is leased next, and how the tasks fare: draws by weight, and by success of late.

Pure: what was drawn and what it scored come from the ledger at a start, and from the front later;
the chance of draw number n is a function of the run's seed and n. A task (or a bucket of its
prompts) whose answers of late are always right, or never, teaches little: it is drawn less, or no
more. While all are so, all are drawn by their weights, so that a run never stops for want of a
prompt.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from echo_hub.config.tasks import CurriculumSection, TaskSection
from echo_hub.tasks.mixture import Mixture
from echo_hub.tasks.splits import rng_of

PREFIX = "task."
_BLOCK = 256


@dataclass(frozen=True)
class History:
    """What the ledger knows of the draws before this start, by arm.

    `drawn`: prompts that were numbered; `rewards`: of the last groups, the oldest first.
    """

    drawn: Mapping[int, int]
    rewards: Mapping[int, Sequence[Sequence[float]]]


NOTHING = History({}, {})


class Curriculum:
    """Draws the numbers of train prompts (see `Mixture`), and hears what they scored."""

    def __init__(
        self,
        mixture: Mixture,
        tasks: Sequence[TaskSection],
        rules: CurriculumSection,
        *,
        seed: int,
        history: History = NOTHING,
    ) -> None:
        self._mixture = mixture
        self._solved_at = [task.solved_at for task in tasks]
        self._rules = rules
        self._seed = seed
        self._drawn = Counter(history.drawn)
        self._draws = self._drawn.total()
        self._recent: dict[int, deque[tuple[int, int]]] = {}
        self._outside: set[int] = set()
        for arm, groups in history.rewards.items():
            for rewards in groups:
                self._note(arm, rewards)
        plain = [arm.weight for arm in mixture.arms]
        self._plain, self._weights = _Weights(plain), _Weights(plain)
        for arm in self._outside:
            self._reweigh(arm)

    def draw(self) -> int:
        """The number of the next prompt."""
        arm = 0
        if len(self._mixture.arms) > 1:
            weights = self._weights if self._weights.total else self._plain
            arm = weights.at(rng_of(self._seed, "draw", self._draws).random())
        number = self._mixture.number(arm, self._drawn[arm])
        self._drawn[arm] += 1
        self._draws += 1
        return number

    def observe(self, number: int, rewards: Sequence[float]) -> None:
        """A group of this train prompt was scored."""
        arm = self._mixture.arm_of(number)
        was_outside = arm in self._outside
        self._note(arm, rewards)
        if was_outside != (arm in self._outside):
            self._reweigh(arm)

    def _reweigh(self, arm: int) -> None:
        share = self._rules.outside if arm in self._outside else 1.0
        self._weights.set(arm, self._mixture.arms[arm].weight * share)

    def outside(self, task: int) -> float:
        """Share of a task's buckets that are never or always solved of late."""
        arms = [number for number, arm in enumerate(self._mixture.arms) if arm.task == task]
        return sum(arm in self._outside for arm in arms) / len(arms)

    def _note(self, arm: int, rewards: Sequence[float]) -> None:
        window = self._rules.window
        if not window or arm >= len(self._mixture.arms):
            return
        solved_at = self._solved_at[self._mixture.arms[arm].task]
        recent = self._recent.setdefault(arm, deque(maxlen=window))
        recent.append((sum(reward >= solved_at for reward in rewards), len(rewards)))
        rate = sum(solved for solved, _ in recent) / sum(count for _, count in recent)
        full = len(recent) == window
        if full and not self._rules.low < rate < self._rules.high:
            self._outside.add(arm)
        else:
            self._outside.discard(arm)


class _Weights:
    """Numbers that are drawn in proportion to their weights, and whose weights change.

    Sums are kept of blocks of them and made anew, never adjusted, so that no weight of zero is
    drawn for the sake of a rounding.
    """

    def __init__(self, weights: Sequence[float]) -> None:
        self._weights = list(weights)
        starts = range(0, len(weights), _BLOCK)
        self._sums = [sum(self._weights[start : start + _BLOCK]) for start in starts]

    def set(self, number: int, weight: float) -> None:
        """Change one weight."""
        self._weights[number] = weight
        start = number - number % _BLOCK
        self._sums[number // _BLOCK] = sum(self._weights[start : start + _BLOCK])

    @property
    def total(self) -> float:
        return sum(self._sums)

    def at(self, share: float) -> int:
        """The number at this share, in [0, 1), of the total, which is not zero."""
        left, found = share * self.total, 0
        for block, weight in enumerate(self._sums):
            if weight:
                found = block
                if left < weight:
                    break
                left -= weight
        start, last = found * _BLOCK, 0
        for number in range(start, min(start + _BLOCK, len(self._weights))):
            if self._weights[number]:
                last = number
                if left < self._weights[number]:
                    break
                left -= self._weights[number]
        return last


@dataclass
class _Seen:
    groups: int = 0
    rollouts: int = 0
    tokens: int = 0
    solved: int = 0
    flat: int = 0
    reward: float = 0.0


class TaskMeters:
    """What the groups of each task were like since the last update. All rollouts count alike."""

    def __init__(self, tasks: Sequence[TaskSection]) -> None:
        self._tasks = tasks
        self._seen: dict[int, _Seen] = {}

    def observe(self, task: int, rewards: Sequence[float], lengths: Sequence[int]) -> None:
        """A train group of this task was scored; `lengths` in tokens."""
        seen = self._seen.setdefault(task, _Seen())
        solved_at = self._tasks[task].solved_at
        seen.groups += 1
        seen.rollouts += len(rewards)
        seen.tokens += sum(lengths)
        seen.solved += sum(reward >= solved_at for reward in rewards)
        seen.flat += len(set(rewards)) == 1
        seen.reward += sum(rewards)

    def take(self) -> dict[str, float]:
        """Metrics named `task.<name>.<metric>`, and start anew.

        Of each task with groups: `groups`, `reward_mean`, `pass_rate` (share of answers with a
        reward of `solved_at` or more), `length_mean` (tokens), `zero_advantage` (share of groups
        whose answers all have the same reward).
        """
        metrics: dict[str, float] = {}
        for task, seen in sorted(self._seen.items()):
            of = f"{PREFIX}{self._tasks[task].called}."
            metrics |= {
                f"{of}groups": float(seen.groups),
                f"{of}reward_mean": seen.reward / seen.rollouts,
                f"{of}pass_rate": seen.solved / seen.rollouts,
                f"{of}length_mean": seen.tokens / seen.rollouts,
                f"{of}zero_advantage": seen.flat / seen.groups,
            }
        self._seen.clear()
        return metrics


def latest(of_updates: Iterable[Mapping[str, Mapping[str, float]]]) -> dict[str, dict[str, float]]:
    """The newest value of each metric of each task, from updates in order (see `by_task`)."""
    found: dict[str, dict[str, float]] = {}
    for tasks in of_updates:
        for name, metrics in tasks.items():
            found.setdefault(name, {}).update(metrics)
    return found


def by_task(metrics: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """The metrics of `TaskMeters.take` among others, by the task's name."""
    found: dict[str, dict[str, float]] = {}
    for key, value in metrics.items():
        if key.startswith(PREFIX):
            name, _, metric = key.removeprefix(PREFIX).rpartition(".")
            found.setdefault(name, {})[metric] = value
    return found
