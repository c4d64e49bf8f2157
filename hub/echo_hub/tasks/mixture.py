"""Several tasks in a run: which prompt of which task a prompt's number means.

Pure. A run's prompts are numbered; a number is all that a lease, the ledger and a scorer need to
name a prompt, so that a prompt which is leased again, before or after a restart, is the same one.
An *arm* is what is drawn: a task, or one of the buckets of its prompts. A number holds the arm and
how many numbers of it came before, so which arm was drawn needs no record of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from echo_hub.tasks.base import Split

MOST_ARMS = 1 << 16


@dataclass(frozen=True)
class Arm:
    """A bucket of a task's prompts. `weight` is its part of the task's weight."""

    task: int
    bucket: int
    weight: float


class Mixture:
    """The arms of a run. At most `MOST_ARMS`; numbers of train prompts are `stride` * count + arm.

    A run with a single arm has stride 1: its numbers are the task's own.
    """

    def __init__(
        self,
        buckets: Sequence[int],
        weights: Sequence[float] | None = None,
        *,
        kept: Sequence[Sequence[int]] = (),
    ) -> None:
        """
        Args:
            buckets: of each task, how many; and `weights`, how often it is drawn (equally).
            kept: of each task, the indices of the only train prompts to use; empty is all.
        """
        self._buckets = list(buckets)
        self._kept = kept or [()] * len(self._buckets)
        chances = weights or [1.0] * len(self._buckets)
        self.arms = [
            Arm(task, bucket, weight / count)
            for task, (count, weight) in enumerate(zip(buckets, chances, strict=True))
            for bucket in range(count)
        ]
        self.stride = 1 if len(self.arms) == 1 else MOST_ARMS

    def first_of(self, task: int, count: int) -> list[int]:
        """The numbers of the first train prompts of a task."""
        start = sum(self._buckets[:task])
        buckets = self._buckets[task]
        return [self.number(start + i % buckets, i // buckets) for i in range(count)]

    def number(self, arm: int, count: int) -> int:
        """The number of an arm's train prompt 0, 1, 2, ..."""
        return count * self.stride + arm

    def arm_of(self, number: int) -> int:
        """The arm that a train prompt was drawn from."""
        return number % self.stride

    def task_of(self, split: Split, number: int) -> int:
        """Which task a prompt is of."""
        return self.place(split, number)[0]

    def place(self, split: Split, number: int) -> tuple[int, int]:
        """The task of a prompt, and which of the task's prompts it is.

        LookupError for the number of an arm that the run does not have. Held-out prompts go
        through the tasks in turn, so that each has as many in an evaluation.
        """
        if split == "heldout":
            index, task = divmod(number, len(self._buckets))
            return task, index
        count, number_of_arm = divmod(number, self.stride)
        if number_of_arm >= len(self.arms):
            raise LookupError(f"train prompt {number} is of a task that this run no longer has")
        arm = self.arms[number_of_arm]
        index, kept = count * self._buckets[arm.task] + arm.bucket, self._kept[arm.task]
        return arm.task, kept[index % len(kept)] if kept else index
