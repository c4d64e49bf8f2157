"""The node's side of its engine process: keeps one running, and gives up on one that hangs.

Promises: every call ends, with an answer, an `EngineError` (the engine said no and is as before) or
a `ProcessError` (its process died, hung, or was suspended). After a `ProcessError` the next call
finds a new process with the same base loaded and the same version active, which is given fewer
answers at once if the last one failed at work (`sizing`). A hang is told by tokens: a process at
work that samples none for `stall_s` is killed. One that fails again and again without one answer in
between is not started for ever: `run` raises `EngineError`.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar, cast

import msgspec
import trio

from echo_node.engines.base import (
    Completion,
    Dtype,
    EngineInfo,
    Job,
    Resources,
)
from echo_node.engines.link import Link, MemoryRanOutError, Question, failure_of
from echo_node.engines.messages import (
    Activate,
    Activated,
    Answer,
    Command,
    Failed,
    Load,
    Loaded,
    Lost,
    Pace,
    Prepare,
    Release,
    Resize,
    Score,
    Scored,
)
from echo_node.engines.patience import (
    ACTIVATE_S,
    MAX_FAILURES,
    SCORE_S,
    START_S,
    load_deadline_s,
    open_log,
    restart_delay_s,
)
from echo_node.engines.sizing import Sizing
from echo_p2p.errors import EngineError, ProcessError, lone_cause
from echo_p2p.nursery import open_nursery
from echo_p2p.pipes import Child, child_process

ENGINE_MODULE = "echo_node.engines.process"

A = TypeVar("A", bound=Answer)
log = logging.getLogger(__name__)


class RemoteEngine(Link):
    """One engine in a process of its own. Made by `open_engine`."""

    def __init__(
        self, *, threads: int, max_sequences: int, log_path: Path, engine: str = "auto"
    ) -> None:
        super().__init__(Sizing.full(max_sequences))
        self.active: int | None = None
        """Version of jobs to come."""
        self._name = engine
        self._resources = Resources()
        self._threads = threads
        self._nice = 0
        self._log_path = log_path
        self._asking = trio.Lock()
        self._setup: dict[type[Command], Command] = {}  # what a new process has to do first
        self._scope: trio.CancelScope | None = None
        self._suspended = False
        self._early = False

    # --- what is asked of it ----------------------------------------------------------------------

    def use(
        self,
        *,
        max_sequences: int,
        engine: str | None = None,
        resources: Resources = Resources(),  # noqa: B008 - it is frozen
    ) -> None:
        """What the next `load` is to make: another engine (None: the same), another batch."""
        self._name = engine or self._name
        self._resources = resources
        self._sizing = Sizing.full(max_sequences)

    def prepare(self) -> None:
        """Start a process now, and let it import what an engine needs while it is not yet asked."""
        self._early = True
        self._notice.tell()

    async def load(self, base: Path, dtype: Dtype) -> EngineInfo:
        """Load a base snapshot; EngineError says what is wrong with it."""
        deadline_s = await trio.to_thread.run_sync(load_deadline_s, base)
        command = Load(
            base=str(base),
            dtype=dtype,
            threads=self._threads,
            max_sequences=self._sizing.most,
            engine=self._name,
            nice=self._nice,
            resources=self._resources,
        )
        answer = await self._ask(command, Loaded, deadline_s)
        self.active = None
        self._setup = {Load: command}
        self._vocab_size = answer.info.vocab_size
        self._count_anew()
        return answer.info

    async def activate(self, version: int, adapter: Path) -> None:
        """Make a version's folder the policy of jobs to come; on EngineError the last one stays."""
        command = Activate(version=version, adapter=str(adapter))
        await self._ask(command, Activated, ACTIVATE_S)
        self._setup[Activate] = command
        self.active = version

    async def score(self, tokens: Sequence[int]) -> list[float]:
        """Log-probabilities under the active version of all tokens but the first."""
        return (await self._ask(Score(tokens=list(tokens)), Scored, SCORE_S)).logprobs

    def release(self, version: int) -> None:
        """No job will name this version any more."""
        if self._child is not None:
            self._send(Release(version=version))

    async def generate(
        self,
        jobs: Sequence[Job],
        *,
        version: int | None = None,
        finished: Callable[[], None] | None = None,
    ) -> list[Completion]:
        """Sample every job, under the active version or an earlier one that was not released.

        Results are in the order of the jobs; `finished` is called as each is done. Several calls
        may be under way.
        """
        version = self.active if version is None else version
        if version is None:
            raise EngineError("no policy version is active.")
        batch = self._batches.add(version, jobs, finished)
        self._fill()
        try:
            await batch.done.wait()
        finally:
            self._drop(self._batches.forget(batch))
        if batch.error is not None:
            raise batch.error
        return batch.completions

    def kill(self) -> None:
        """End the engine's process at once; for leaving in a hurry."""
        if self._child is not None:
            self._child.kill()

    def govern(self, *, threads: int, nice: int, duty: int) -> None:
        """How much of the machine it may use.

        Args:
            threads: CPU threads, and
            nice: priority as Unix counts it; both from its next process on.
            duty: percent of the time for which it computes, from now on.
        """
        self._threads, self._nice = threads, nice
        load = self._setup.get(Load)
        if isinstance(load, Load):
            self._setup[Load] = msgspec.structs.replace(load, threads=threads, nice=nice)
        if duty != self._duty:
            self._duty = duty
            if self._child is not None:
                self._send(Pace(percent=duty))

    async def suspend(self) -> None:
        """End the process and so release its memory; what runs ends with a ProcessError.

        Calls then wait for `resume`, and find a new process with the same base and version.
        """
        self._suspended = True
        if self._scope is not None:
            self._scope.cancel()
        await self._notice.until(lambda: self._child is None)

    def resume(self) -> None:
        """The next use starts a process."""
        self._suspended = False
        self._notice.tell()

    async def _ask(self, command: Command, kind: type[A], deadline_s: float) -> A:
        async with self._asking:
            question = self._question = Question(command, deadline_s)
            self._notice.tell()
            try:
                await question.done.wait()
            finally:
                if self._question is question:  # nobody waits for it any more
                    self._question = None
                    if question.ends_at is not None:
                        self.kill()  # its answer would be taken for the next one's
        if question.error is not None:
            raise question.error
        if isinstance(question.answer, Failed):
            raise EngineError(question.answer.message)
        return cast(A, question.answer)

    # --- one process after the other --------------------------------------------------------------

    async def run(self) -> None:
        """Keep a process running until cancelled; EngineError if none stays alive."""
        failures = 0
        with open_log(self._log_path) as write:
            while True:
                await self._notice.until(self._is_wanted)
                failure = await self._run_one(write)
                if failure is None:
                    continue
                failures = 1 if self._answered else failures + 1
                self.restarts += 1
                if failures >= MAX_FAILURES:
                    raise EngineError(
                        f"the engine's process failed {failures} times in a row. The last time: "
                        f"{failure.message.splitlines()[0]}",
                        fix=f"Its last words are in {self._log_path}.",
                    )
                await trio.sleep(restart_delay_s(failures))

    def _is_wanted(self) -> bool:
        return not self._suspended and bool(self._early or self._question or self._batches)

    async def _run_one(self, write: Callable[[str], None]) -> ProcessError | None:
        """Run one process until it fails; None: it was ended, since it is not wanted now."""
        self._answered = False
        self._outgoing.clear()
        failure: ProcessError | None = None
        async with child_process(
            ENGINE_MODULE,
            name="the engine",
            env={"TRANSFORMERS_VERBOSITY": "error"},
            stderr_line=write,
        ) as child:
            self._child = child
            try:
                failure = await self._serve(child)
            finally:
                child.kill()
                self._child = self._scope = None
                self._end(failure)
        self._notice.tell()
        return failure

    async def _serve(self, child: Child) -> ProcessError | None:
        """Talk to a process until it fails, or nobody wants it any more (None)."""
        try:
            with trio.CancelScope() as self._scope:
                await self._set_up(child)
                if self._duty < 100:
                    await child.send(Pace(percent=self._duty))
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._tell, child)
                    nursery.start_soon(self._watch, child)
                    nursery.start_soon(self._listen, child)
                    self._fill()
        except ProcessError as error:
            return error
        except BaseExceptionGroup as group:
            cause = lone_cause(group)
            if not isinstance(cause, ProcessError):
                raise
            return cause
        return None

    async def _set_up(self, child: Child) -> None:
        """Bring a new process to where the last one was, unless it is to start afresh."""
        if self._early:
            self._early = False
            await child.send(Prepare(engine=self._name, nice=self._nice))
        if self._question is not None and isinstance(self._question.command, Load):
            return
        for command in self._setup.values():
            kind = Answer | Lost
            limit_s = START_S + ACTIVATE_S
            answer: Answer | Lost = await child.call(command, kind, deadline_s=limit_s)  # type: ignore[arg-type]
            if isinstance(answer, Lost):
                raise failure_of(answer)
            if isinstance(answer, Failed):
                raise ProcessError(f"a new engine cannot go on: {answer.message}")
        if self.capacity < self._sizing.most:
            await child.send(Resize(max_sequences=self.capacity))

    def _end(self, failure: ProcessError | None) -> None:
        """The process is gone: what it still owed will not come."""
        self._count_anew()
        if isinstance(failure, MemoryRanOutError) and not self._batches.running:
            self._sizing = self._sizing.after_small_memory()
        error = failure or ProcessError("the engine is suspended.")
        self._lose(error, smaller=failure is not None)
        question = self._question
        if question is not None and (failure is not None or question.ends_at is not None):
            question.error = error
            question.done.set()
            self._question = None


@asynccontextmanager
async def open_engine(
    *, threads: int, max_sequences: int, log_path: Path, engine: str = "auto"
) -> AsyncIterator[RemoteEngine]:
    """An engine process for the length of a block.

    Args:
        threads: CPU threads; 0 leaves the engine's default.
        max_sequences: most answers at once.
        log_path: gets what the process writes to stderr.
        engine: a name that `choice.make_engine` knows.
    """
    remote = RemoteEngine(
        threads=threads, max_sequences=max_sequences, log_path=log_path, engine=engine
    )
    async with open_nursery() as nursery:
        nursery.start_soon(remote.run)
        yield remote
        nursery.cancel_scope.cancel()
