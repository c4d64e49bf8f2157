"""The jobs that a node has asked its engine for: which were sent, which are answered.

Decides nothing about processes and knows no pipe. A batch is asked for by one caller, is of one
version, and ends with all its answers or with one error.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import trio

from echo_node.engines.base import Completion, Job
from echo_node.engines.messages import Done, Order
from echo_p2p.errors import EchoError


@dataclass(eq=False)
class Batch:
    """Jobs by number; `sent` are those that the process has."""

    version: int
    jobs: dict[int, Job]
    finished: Callable[[], None] | None = None
    """Called as each job is done."""
    sent: set[int] = field(default_factory=set)
    answers: dict[int, Completion] = field(default_factory=dict)
    error: EchoError | None = None
    done: trio.Event = field(default_factory=trio.Event)

    @property
    def completions(self) -> list[Completion]:
        """All answers, in the order of the jobs."""
        return [self.answers[number] for number in self.jobs]


class Batches:
    """All batches that are not over, in the order in which they came."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._batches: list[Batch] = []
        self._batch_of: dict[int, Batch] = {}  # the jobs that were sent

    def __bool__(self) -> bool:
        return bool(self._batches)

    @property
    def running(self) -> int:
        """Jobs that the process has."""
        return len(self._batch_of)

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompts that the process has."""
        return sum(len(batch.jobs[number].prompt) for number, batch in self._batch_of.items())

    def add(
        self, version: int, jobs: Sequence[Job], finished: Callable[[], None] | None = None
    ) -> Batch:
        """A new batch, of which nothing was sent."""
        batch = Batch(version, {next(self._numbers): job for job in jobs}, finished)
        if batch.jobs:
            self._batches.append(batch)
        else:
            batch.done.set()
        return batch

    def to_send(self, room: int) -> list[Order]:
        """Up to `room` jobs that now count as sent, those that came first first."""
        orders: list[Order] = []
        for batch in self._batches:
            for number, job in batch.jobs.items():
                if len(orders) >= room:
                    return orders
                if number not in batch.sent and number not in batch.answers:
                    batch.sent.add(number)
                    self._batch_of[number] = batch
                    orders.append(Order(number=number, job=job, version=batch.version))
        return orders

    def job(self, number: int) -> Job | None:
        """A job that the process has."""
        batch = self._batch_of.get(number)
        return None if batch is None else batch.jobs[number]

    def version(self, number: int) -> int:
        """The version that a job which the process has must be answered by."""
        return self._batch_of[number].version

    def settle(self, done: Done) -> None:
        """A job that the process had is answered."""
        batch = self._batch_of.pop(done.number)
        batch.sent.discard(done.number)
        batch.answers[done.number] = done.completion
        if batch.finished is not None:
            batch.finished()
        if len(batch.answers) == len(batch.jobs):
            self._end(batch)

    def fail(self, number: int, error: EchoError) -> list[int]:
        """A job that the process had cannot be answered: neither can its batch.

        Returns the other jobs of the batch that the process has.
        """
        batch = self._batch_of[number]
        batch.error = error
        return [other for other in self._end(batch) if other != number]

    def lose(self, error: EchoError) -> None:
        """The process has no job any more."""
        for batch in set(self._batch_of.values()):
            batch.error = error
            self._end(batch)

    def forget(self, batch: Batch) -> list[int]:
        """Nobody waits for a batch any more; the jobs of it that the process has."""
        return self._end(batch)

    def _end(self, batch: Batch) -> list[int]:
        if batch in self._batches:
            self._batches.remove(batch)
        sent = sorted(batch.sent)
        for number in sent:
            self._batch_of.pop(number, None)
        batch.sent.clear()
        batch.done.set()
        return sent
