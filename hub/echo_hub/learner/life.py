"""One learner process after another, each begun at a checkpoint and replaced when it dies.

Promises: there is one process at a time. One that died, hung past a deadline, or was given up on in
mid-command is not spoken to again: the next command has another one begin at the checkpoint of the
version last reached, after a pause that grows with each death in a row.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trio
from msgspec.structs import replace

from echo_hub.learner.messages import Answer, Command, Failed, Start, Started
from echo_p2p.errors import ConfigError, EchoError, LearnerError, ProcessError, UpdateRefusedError
from echo_p2p.pipes import Child, child_process

_ANSWER: Any = Answer  # a union, which `type[T]` has no room for

log = logging.getLogger(__name__)


def restart_pause_s(deaths: int) -> float:
    """Seconds before a learner is started again after so many deaths in a row."""
    return float(min(60, 4 ** (deaths - 1))) if deaths else 0.0


class Life:
    """The learner's processes.

    Args:
        start: how the first one begins.
        deadline_s: for loading base and adapter.
        checkpoint_of: the checkpoint folder of a version, to begin again from; None: it does not.
        pause_s: seconds before a restart, by the number of deaths in a row.
    """

    def __init__(
        self,
        nursery: trio.Nursery,
        start: Start,
        *,
        deadline_s: float,
        checkpoint_of: Callable[[int], Path] | None,
        pause_s: Callable[[int], float],
    ) -> None:
        self._nursery = nursery
        self._start = start
        self._deadline_s = deadline_s
        self._checkpoint_of = checkpoint_of
        self._pause_s = pause_s
        self._deaths = 0
        self._broken = ""  # why the process is not spoken to any more
        self._child: Child | None = None
        self._end, self._ended = trio.Event(), trio.Event()

    @property
    def pid(self) -> int:
        """Process id of the learner."""
        assert self._child is not None
        return self._child.pid

    async def begin(self) -> Started:
        """Start the first process."""
        return await self._begin(self._start)

    async def call(self, command: Command, version: int, *, deadline_s: float) -> Answer:
        """A command's answer. A process that must begin again does so at `version`.

        Raises:
            ProcessError: it died or hung over this command, or could not begin again.
        """
        if self._broken:
            await self._begin_again(version)
        answer = await self._send(command, deadline_s)
        self._deaths = 0
        return answer

    async def _send(self, command: Command, deadline_s: float) -> Answer:
        assert self._child is not None
        # until its answer is in, the pipe may hold half of one
        self._broken = "the learner was given up on in mid-command."
        try:
            answer: Answer = await self._child.call(command, _ANSWER, deadline_s=deadline_s)
        except ProcessError as error:
            self._broken = str(error)
            self._deaths += 1
            raise
        self._broken = ""
        return answer

    async def _begin_again(self, version: int) -> None:
        if self._checkpoint_of is None:
            raise ProcessError(self._broken)
        self._end.set()
        await self._ended.wait()
        pause_s = self._pause_s(self._deaths)
        log.warning(
            "the learner begins again at version %d in %.0f s: %s", version, pause_s, self._broken
        )
        await trio.sleep(pause_s)
        checkpoint = self._checkpoint_of(version)
        try:
            started = await self._begin(replace(self._start, checkpoint=str(checkpoint)))
        except (LearnerError, ConfigError) as error:  # no fault of the command that waits
            raise self._failed(f"the learner cannot begin again: {error}") from error
        if started.version != version:
            raise self._failed(f"{checkpoint} says that it is version {started.version}.")

    def _failed(self, why: str) -> ProcessError:
        self._broken = why
        self._deaths += 1
        return ProcessError(why)

    async def _begin(self, start: Start) -> Started:
        self._end, self._ended = trio.Event(), trio.Event()
        self._child = await self._nursery.start(self._keep, self._end, self._ended)
        answer = await self._send(start, self._deadline_s)
        if isinstance(answer, Failed):
            raise error_of(answer)
        if not isinstance(answer, Started):
            raise ProcessError(f"the learner answered Start with {type(answer).__name__}.")
        return answer

    async def _keep(
        self,
        end: trio.Event,
        ended: trio.Event,
        *,
        task_status: Any = trio.TASK_STATUS_IGNORED,
    ) -> None:
        async with child_process("echo_hub.learner.process", name="the learner") as child:
            task_status.started(child)
            await end.wait()
            child.kill()  # it may be in the middle of something that nobody waits for
        ended.set()


def error_of(answer: Failed) -> EchoError:
    """The error that a learner's answer stands for."""
    if answer.why:
        return UpdateRefusedError(answer.message, why=answer.why, back_to=answer.back_to)
    kind = ConfigError if answer.settings else LearnerError
    return kind(answer.message, fix=answer.fix)
