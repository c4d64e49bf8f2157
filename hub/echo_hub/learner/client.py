"""The hub's side of its learner process.

Promises: one command at a time, so audits run between updates and never during one; an update waits
for no more than one audit, and groups that wait for theirs share the next. A command that the
learner could not carry out raises `LearnerError`, or `ConfigError` if run.toml is to blame, and has
changed nothing. A learner that died, hung past a deadline, or was given up on in mid-command is
not spoken to again: `ProcessError`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, TypeVar

import trio

from echo_hub.learner.messages import (
    Answer,
    Audit,
    Audited,
    AuditedAll,
    Audits,
    Command,
    Failed,
    Start,
    Started,
    Train,
    Trained,
    TrainGroup,
)
from echo_p2p.errors import ConfigError, EchoError, LearnerError, ProcessError, UpdateRefusedError
from echo_p2p.pipes import Child, child_process

AUDIT_TOKENS = 4096
"""Answer tokens in one audit command of several groups: enough to fill a pass of a small model, few
enough not to delay an update."""

A = TypeVar("A", Started, Trained, AuditedAll)
_ANSWER: Any = Answer  # a union, which `type[T]` has no room for


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
    """A started learner. `version` is the one it has reached, `trainable` its weights' number."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self._lock = trio.Lock()
        self._auditing = trio.Lock()  # one audit at most stands before an update
        self._audits: deque[_Waiting] = deque()
        self.spent = Spent()
        self._broken = ""  # why it is not spoken to any more
        self.version = 0
        self.trainable = 0

    @property
    def pid(self) -> int:
        """Process id of the learner."""
        return self._child.pid

    async def train(
        self, version: int, groups: Sequence[TrainGroup], *, out: Path, deadline_s: float
    ) -> Trained:
        """One update from `version` to `version + 1`; its checkpoint folder is `out`."""
        command = Train(version=version, groups=list(groups), out=str(out))
        trained = await self._ask(command, Trained, deadline_s)
        self.version = trained.version
        return trained

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
            raise _error(waiting.answer)
        return waiting.answer

    async def _audit_all(self, deadline_s: float) -> None:
        """Audit those that wait, the longest waiting first, who is first of all our caller."""
        batch = list(takewhile(_within(AUDIT_TOKENS), self._audits))
        found = await self._ask(Audits([one.command for one in batch]), AuditedAll, deadline_s)
        for one, answer in zip(batch, found.answers, strict=True):
            one.answer = answer
            with suppress(ValueError):  # not there if its caller has left
                self._audits.remove(one)

    async def start(self, command: Start, *, deadline_s: float) -> None:
        """Load base and adapter; once, before anything else."""
        started = await self._ask(command, Started, deadline_s)
        self.version, self.trainable = started.version, started.trainable

    async def _ask(self, command: Command, kind: type[A], deadline_s: float) -> A:
        async with self._lock:
            if self._broken:
                raise ProcessError(self._broken)
            # until its answer is in, the pipe may hold half of one
            self._broken = "the learner was given up on in mid-command."
            started = trio.current_time()
            try:
                answer = await self._child.call(command, _ANSWER, deadline_s=deadline_s)
            except ProcessError as error:
                self._broken = str(error)
                raise
            self._broken = ""
            self._note(command, trio.current_time() - started)
        if isinstance(answer, Failed):
            raise _error(answer)
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


def _error(answer: Failed) -> EchoError:
    if answer.why:
        return UpdateRefusedError(answer.message, why=answer.why, back_to=answer.back_to)
    kind = ConfigError if answer.settings else LearnerError
    return kind(answer.message, fix=answer.fix)


@asynccontextmanager
async def open_learner(
    config_json: str,
    *,
    base: Path,
    checkpoint: Path | None,
    out: Path,
    deadline_s: float,
) -> AsyncIterator[Learner]:
    """Run a learner process for the length of the block.

    Args:
        config_json: the `RunConfig` as JSON.
        base: folder of the base snapshot.
        checkpoint: the checkpoint folder to go on from; None begins at version 0.
        out: where version 0's own checkpoint goes, if it begins there.
        deadline_s: for loading base and adapter.
    """
    async with child_process("echo_hub.learner.process", name="the learner") as child:
        learner = Learner(child)
        start = Start(
            config=config_json,
            base=str(base),
            checkpoint=None if checkpoint is None else str(checkpoint),
            out=str(out),
        )
        await learner.start(start, deadline_s=deadline_s)
        yield learner
