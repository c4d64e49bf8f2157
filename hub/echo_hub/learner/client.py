"""The hub's side of its learner process.

Promises: one command at a time, so audits run between updates and never during one. A command that
the learner could not carry out raises `LearnerError`, or `ConfigError` if run.toml is to blame, and
has changed nothing. A learner that died, hung past a deadline, or was given up on in mid-command is
not spoken to again: `ProcessError`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import trio

from echo_hub.learner.messages import (
    Answer,
    Audit,
    Audited,
    Command,
    Failed,
    Start,
    Started,
    Train,
    Trained,
    TrainGroup,
)
from echo_p2p.errors import ConfigError, LearnerError, ProcessError, UpdateRefusedError
from echo_p2p.pipes import Child, child_process

A = TypeVar("A", Started, Trained, Audited)
_ANSWER: Any = Answer  # a union, which `type[T]` has no room for


class Learner:
    """A started learner. `version` is the one it has reached, `trainable` its weights' number."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self._lock = trio.Lock()
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
        return await self._ask(command, Audited, deadline_s)

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
            try:
                answer = await self._child.call(command, _ANSWER, deadline_s=deadline_s)
            except ProcessError as error:
                self._broken = str(error)
                raise
            self._broken = ""
        if isinstance(answer, Failed) and answer.why:
            raise UpdateRefusedError(answer.message, why=answer.why, back_to=answer.back_to)
        if isinstance(answer, Failed):
            kind_of_error = ConfigError if answer.settings else LearnerError
            raise kind_of_error(answer.message, fix=answer.fix)
        if not isinstance(answer, kind):
            raise ProcessError(
                f"the learner answered {type(command).__name__} with {type(answer).__name__}."
            )
        return answer


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
