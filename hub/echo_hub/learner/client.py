"""The hub's side of its learner process.

Promises: one command at a time, so audits run between updates and never during one; an update waits
for no more than one audit, and groups that wait for theirs share the next. A command that the
learner could not carry out raises `LearnerError` (`UpdateRefusedError` if it would not), or
`ConfigError` if run.toml is to blame, and has changed nothing. One over which the learner died or
hung raises `ProcessError`, and has changed nothing either; with the next one it begins again
(`life`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import TypeVar

import trio

from echo_hub.learner.life import Life, error_of, restart_pause_s
from echo_hub.learner.messages import (
    Audit,
    Audited,
    AuditedAll,
    Audits,
    Command,
    Failed,
    RollBack,
    Start,
    Started,
    Train,
    Trained,
    TrainGroup,
)
from echo_p2p.errors import ProcessError
from echo_p2p.nursery import open_nursery

AUDIT_TOKENS = 4096
"""Answer tokens in one audit command of several groups: enough to fill a pass of a small model, few
enough not to delay an update."""

A = TypeVar("A", Trained, AuditedAll)


@dataclass(frozen=True)
class Spent:
    """Seconds the learner process has spent on finished commands."""

    training_s: float = 0.0
    auditing_s: float = 0.0

    def __add__(self, other: Spent) -> Spent:
        return Spent(self.training_s + other.training_s, self.auditing_s + other.auditing_s)

    def __sub__(self, other: Spent) -> Spent:
        return Spent(self.training_s - other.training_s, self.auditing_s - other.auditing_s)


class _Waiting:
    """An audit that somebody waits for."""

    def __init__(self, command: Audit) -> None:
        self.command = command
        self.answer: Audited | Failed | None = None


class Learner:
    """A started learner. `version` is the one it has reached, `trainable` its weights' number;
    `batch`, of its first checkpoint, the groups that its update was made from."""

    def __init__(self, life: Life, started: Started) -> None:
        self._life = life
        self._lock = trio.Lock()
        self._auditing = trio.Lock()  # one audit at most stands before an update
        self._audits: deque[_Waiting] = deque()
        self.spent = Spent()
        self.least_update_s = 0.0
        """An update takes so long at least: the learner is busy until then (`demo --throttle`)."""
        self.version = started.version
        self.trainable = started.trainable
        self.batch = started.batch

    @property
    def pid(self) -> int:
        """Process id of the learner."""
        return self._life.pid

    async def train(
        self,
        version: int,
        groups: Sequence[TrainGroup],
        *,
        out: Path,
        deadline_s: float,
        batch: Sequence[int] = (),
        blank: Sequence[list[float]] = (),
        blank_arms: Sequence[int] = (),
        forget: bool = False,
    ) -> Trained:
        """One update from `version` to `version + 1`, as `Train` says."""
        command = Train(
            version=version,
            groups=list(groups),
            out=str(out),
            batch=list(batch),
            blank=list(blank),
            blank_arms=list(blank_arms),
            forget=forget,
        )
        return await self._ask(command, Trained, deadline_s)

    async def roll_back(
        self, version: int, checkpoint: Path, *, out: Path, deadline_s: float
    ) -> Trained:
        """Take over an earlier checkpoint as `version + 1`; its folder is `out`."""
        command = RollBack(version=version, checkpoint=str(checkpoint), out=str(out))
        return await self._ask(command, Trained, deadline_s)

    async def audit(self, command: Audit, *, deadline_s: float) -> Audited:
        """Derive one group again. The deadline counts from when its turn has come."""
        waiting = _Waiting(command)
        self._audits.append(waiting)
        try:
            async with self._auditing:
                if waiting.answer is None:
                    await self._audit_all(deadline_s)
        finally:
            with suppress(ValueError):
                self._audits.remove(waiting)
        if not isinstance(waiting.answer, Audited):
            assert waiting.answer is not None
            raise error_of(waiting.answer)
        return waiting.answer

    async def _audit_all(self, deadline_s: float) -> None:
        """Audit those that wait, the longest waiting first, who is first of all our caller."""
        batch = list(takewhile(_within(AUDIT_TOKENS), self._audits))
        found = await self._ask(Audits([one.command for one in batch]), AuditedAll, deadline_s)
        for one, answer in zip(batch, found.answers, strict=True):
            one.answer = answer
            with suppress(ValueError):  # not there if its caller has left
                self._audits.remove(one)

    async def _ask(self, command: Command, kind: type[A], deadline_s: float) -> A:
        async with self._lock:
            started = trio.current_time()
            answer = await self._life.call(command, self.version, deadline_s=deadline_s)
            if isinstance(answer, Trained) and isinstance(command, Train):
                await trio.sleep_until(started + self.least_update_s)
            self._note(command, trio.current_time() - started)
            if isinstance(answer, Trained):
                self.version = answer.version
        if isinstance(answer, Failed):
            raise error_of(answer)
        if not isinstance(answer, kind):
            raise ProcessError(
                f"the learner answered {type(command).__name__} with {type(answer).__name__}."
            )
        return answer

    def _note(self, command: Command, seconds: float) -> None:
        if isinstance(command, Train):
            self.spent += Spent(training_s=seconds)
        elif isinstance(command, Audits):
            self.spent += Spent(auditing_s=seconds)


def _within(tokens: int) -> Callable[[_Waiting], bool]:
    """True of the first audit asked about, and of the next as long as all have `tokens` at most."""
    total = 0

    def fits(one: _Waiting) -> bool:
        nonlocal total
        first, total = not total, total + sum(len(r.tokens) for r in one.command.rollouts)
        return first or total <= tokens

    return fits


@asynccontextmanager
async def open_learner(
    config_json: str,
    *,
    base: Path,
    checkpoint: Path | None,
    out: Path,
    deadline_s: float,
    canary: Sequence[list[int]] = (),
    checkpoint_of: Callable[[int], Path] | None = None,
    pause_s: Callable[[int], float] = restart_pause_s,
) -> AsyncIterator[Learner]:
    """Run a learner process for the length of the block.

    Args:
        config_json: the `RunConfig` as JSON.
        base: folder of the base snapshot.
        checkpoint: the checkpoint folder to go on from; None begins at version 0.
        out: where version 0's own checkpoint goes, if it begins there.
        deadline_s: for loading base and adapter.
        canary: prompts that every version must answer before it counts.
        checkpoint_of, pause_s: as in `Life`.
    """
    start = Start(
        config=config_json,
        base=str(base),
        checkpoint=None if checkpoint is None else str(checkpoint),
        out=str(out),
        canary=list(canary),
    )
    async with open_nursery() as nursery:
        life = Life(
            nursery, start, deadline_s=deadline_s, checkpoint_of=checkpoint_of, pause_s=pause_s
        )
        yield Learner(life, await life.begin())
        nursery.cancel_scope.cancel()
