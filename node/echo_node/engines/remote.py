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
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TextIO, TypeVar, cast

import msgspec
import trio

from echo_node.engines.base import (
    Completion,
    Dtype,
    EngineInfo,
    Job,
    fault_in_completion,
)
from echo_node.engines.batches import Batches
from echo_node.engines.messages import (
    Activate,
    Activated,
    Answer,
    Beat,
    Command,
    Done,
    Drop,
    Failed,
    Load,
    Loaded,
    Lost,
    Pace,
    Prepare,
    Refused,
    Release,
    Resize,
    Score,
    Scored,
    Submit,
    Told,
)
from echo_node.engines.sizing import Sizing
from echo_node.notice import Notice
from echo_p2p.errors import EngineError, ProcessError, lone_cause
from echo_p2p.nursery import open_nursery
from echo_p2p.pipes import Child, child_process

MAX_FAILURES = 5
"""Processes that may fail in a row before the engine is given up."""

_SLOWEST_READ_BYTES_PER_S = 10e6
_SLOWEST_PROMPT_TOKENS_PER_S = 20.0
_START_S = 180.0  # importing torch on a cold, slow disk
_ACTIVATE_S = 300.0
_SCORE_S = 300.0
_GRACE_S = 60.0
_PATIENCE = 10.0  # times slower than ever before is a hang
_MOST_PATIENCE_S = 600.0
_LOOK_S = 0.5
_MAX_LOG_BYTES = 4 << 20

A = TypeVar("A", bound=Answer)
log = logging.getLogger(__name__)


def stall_s(prompt_tokens: int, longest_pause_s: float) -> float:
    """How long an engine at work may sample nothing.

    Args:
        prompt_tokens: those of the jobs it has; it may be reading them all.
        longest_pause_s: the longest it has ever sampled nothing, and then gone on.
    """
    patience = min(_MOST_PATIENCE_S, _PATIENCE * longest_pause_s)
    return _GRACE_S + prompt_tokens / _SLOWEST_PROMPT_TOKENS_PER_S + patience


def restart_delay_s(failures: int) -> float:
    """Pause before the next process after `failures` failed ones in a row."""
    return min(30.0, 0.25 * 2.0 ** min(failures, 10))


class _Question:
    """A command that is answered. One at a time."""

    def __init__(self, command: Command, deadline_s: float) -> None:
        self.command = command
        self.deadline_s = deadline_s
        self.ends_at: float | None = None
        """When it must be answered; None before it was sent."""
        self.answer: Answer | None = None
        self.error: EngineError | ProcessError | None = None
        self.done = trio.Event()


class _MemoryRanOutError(ProcessError):
    """A process ended because memory ran out."""


class RemoteEngine:
    """One engine in a process of its own. Made by `open_engine`."""

    def __init__(
        self, *, threads: int, max_sequences: int, log_path: Path, engine: str = "auto"
    ) -> None:
        self.restarts = 0
        self.failures = 0
        """Times that jobs were refused or lost; all that ran at once count as one."""
        self.active: int | None = None
        """Version of jobs to come."""
        self._name = engine
        self._threads = threads
        self._nice = 0
        self._duty = 100
        self._log_path = log_path
        self._sizing = Sizing.full(max_sequences)
        self._asking = trio.Lock()
        self._notice = Notice()
        self._question: _Question | None = None
        self._setup: dict[type[Command], Command] = {}  # what a new process has to do first
        self._outgoing: deque[Command] = deque()
        self._batches = Batches()
        self._child: Child | None = None
        self._scope: trio.CancelScope | None = None
        self._suspended = False
        self._early = False
        self._vocab_size = 0
        self._counted = 0  # tokens sampled by what is gone
        self._sampled = 0
        self._finished = 0
        self._progress_at = 0.0
        self._longest_pause_s = 0.0
        self._answered = False

    @property
    def capacity(self) -> int:
        """How many answers it is given at once, now."""
        return self._sizing.now

    @property
    def sampled(self) -> int:
        """Tokens sampled so far, as last heard."""
        return self._counted + self._sampled

    @property
    def under_way(self) -> tuple[int, int]:
        """Answers being generated, and the tokens that they have so far, as last heard."""
        running = self._batches.running
        return running, max(0, self._sampled - self._finished) if running else 0

    # --- what is asked of it ----------------------------------------------------------------------

    def use(self, *, max_sequences: int, engine: str | None = None) -> None:
        """What the next `load` is to make: another engine (None: the same), another batch."""
        self._name = engine or self._name
        self._sizing = Sizing.full(max_sequences)

    def prepare(self) -> None:
        """Start a process now, and let it import what an engine needs while it is not yet asked."""
        self._early = True
        self._notice.tell()

    async def load(self, base: Path, dtype: Dtype) -> EngineInfo:
        """Load a base snapshot; EngineError says what is wrong with it."""
        size = await trio.to_thread.run_sync(_size_of, base)
        command = Load(
            base=str(base),
            dtype=dtype,
            threads=self._threads,
            max_sequences=self._sizing.most,
            engine=self._name,
            nice=self._nice,
        )
        answer = await self._ask(command, Loaded, _START_S + size / _SLOWEST_READ_BYTES_PER_S)
        self.active = None
        self._setup = {Load: command}
        self._vocab_size = answer.info.vocab_size
        self._count_anew()
        return answer.info

    async def activate(self, version: int, adapter: Path) -> None:
        """Make a version's folder the policy of jobs to come; on EngineError the last one stays."""
        command = Activate(version=version, adapter=str(adapter))
        await self._ask(command, Activated, _ACTIVATE_S)
        self._setup[Activate] = command
        self.active = version

    async def score(self, tokens: Sequence[int]) -> list[float]:
        """Log-probabilities under the active version of all tokens but the first."""
        return (await self._ask(Score(tokens=list(tokens)), Scored, _SCORE_S)).logprobs

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
            question = self._question = _Question(command, deadline_s)
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
        with _open_log(self._log_path) as file:
            while True:
                await self._notice.until(self._is_wanted)
                if not await self._run_one(file):
                    continue
                failures = 1 if self._answered else failures + 1
                self.restarts += 1
                if failures >= MAX_FAILURES:
                    raise EngineError(
                        f"the engine's process failed {failures} times in a row.",
                        fix=f"Its last words are in {self._log_path}.",
                    )
                await trio.sleep(restart_delay_s(failures))

    def _is_wanted(self) -> bool:
        return not self._suspended and bool(self._early or self._question or self._batches)

    async def _run_one(self, file: TextIO) -> bool:
        """Run one process until it fails; False: it was ended, since it is not wanted now."""
        self._answered = False
        self._outgoing.clear()
        failure: ProcessError | None = None
        async with child_process(
            "echo_node.engines.process",
            name="the engine",
            env={"TRANSFORMERS_VERBOSITY": "error"},
            stderr_line=lambda line: print(line, file=file),
        ) as child:
            self._child = child
            try:
                failure = await self._serve(child)
            finally:
                child.kill()
                self._child = self._scope = None
                self._end(failure)
        self._notice.tell()
        return failure is not None

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
            limit_s = _START_S + _ACTIVATE_S
            answer: Answer | Lost = await child.call(command, kind, deadline_s=limit_s)  # type: ignore[arg-type]
            if isinstance(answer, Lost):
                raise _failure_of(answer)
            if isinstance(answer, Failed):
                raise ProcessError(f"a new engine cannot go on: {answer.message}")
        if self.capacity < self._sizing.most:
            await child.send(Resize(max_sequences=self.capacity))

    def _end(self, failure: ProcessError | None) -> None:
        """The process is gone: what it still owed will not come."""
        self._count_anew()
        if isinstance(failure, _MemoryRanOutError) and not self._batches.running:
            self._sizing = self._sizing.after_small_memory()
        error = failure or ProcessError("the engine is suspended.")
        self._lose(error, smaller=failure is not None)
        question = self._question
        if question is not None and (failure is not None or question.ends_at is not None):
            question.error = error
            question.done.set()
            self._question = None

    def _lose(self, error: EngineError | ProcessError, *, smaller: bool) -> None:
        """What the process was answering is lost."""
        running = self._batches.running
        if not running:
            return
        self.failures += 1
        if smaller:
            self._sizing = self._sizing.after_failure(running)
            log.warning("the engine gets at most %d answers at once from now on", self.capacity)
        self._batches.lose(error)

    def _count_anew(self) -> None:
        self._counted += self._sampled
        self._sampled = self._finished = 0

    # --- while a process runs ---------------------------------------------------------------------

    def _fill(self) -> None:
        """Send jobs while there is room, those that came first first."""
        if self._child is None:
            self._notice.tell()
            return
        idle = not self._batches.running
        orders = self._batches.to_send(self.capacity - self._batches.running)
        if orders:
            self._progress_at = trio.current_time() if idle else self._progress_at
            self._send(Submit(orders=orders))

    def _drop(self, numbers: list[int]) -> None:
        if numbers and self._child is not None:
            self._send(Drop(numbers=numbers))
            self._fill()

    def _send(self, command: Command) -> None:
        self._outgoing.append(command)
        self._notice.tell()

    async def _tell(self, child: Child) -> None:
        while True:
            await self._notice.until(lambda: self._outgoing or self._is_unasked())
            if self._outgoing:
                await child.send(self._outgoing.popleft())
                continue
            question = self._question
            assert question is not None
            question.ends_at = trio.current_time() + question.deadline_s
            await child.send(question.command)

    def _is_unasked(self) -> bool:
        return self._question is not None and self._question.ends_at is None

    async def _watch(self, child: Child) -> None:
        """ProcessError when the process hangs."""
        while True:
            await trio.sleep(_LOOK_S)
            now = trio.current_time()
            question, who = self._question, f"the engine (process {child.pid})"
            if question is not None and question.ends_at is not None and now > question.ends_at:
                name = type(question.command).__name__
                raise ProcessError(f"{who} did not answer {name} in {question.deadline_s:.0f} s.")
            limit_s = stall_s(self._batches.prompt_tokens, self._longest_pause_s)
            limit_s *= 100 / self._duty
            if self._batches.running and now > self._progress_at + limit_s:
                raise ProcessError(f"{who} sampled no token in {limit_s:.0f} s.")

    async def _listen(self, child: Child) -> None:
        kind = Answer | Told
        while True:
            told: Answer | Told = await child.receive(kind)  # type: ignore[arg-type]
            self._answered = self._answered or not isinstance(told, Beat | Lost)
            match told:
                case Beat():
                    if told.sampled > self._sampled:
                        self._moved()
                    self._sampled = told.sampled
                case Done():
                    self._moved()
                    self._settle(told)
                case Refused():
                    self._moved()
                    if self._batches.job(told.number) is not None:
                        self.failures += 1
                        self._drop(self._batches.fail(told.number, EngineError(told.message)))
                case Lost():
                    if told.memory:
                        raise _failure_of(told)
                    self._lose(EngineError(f"the engine failed: {told.message}"), smaller=False)
                case _:
                    self._answer(told)
            self._fill()

    def _moved(self) -> None:
        now = trio.current_time()
        self._longest_pause_s = max(self._longest_pause_s, now - self._progress_at)
        self._progress_at = now

    def _answer(self, answer: Answer) -> None:
        question = self._question
        if question is None or question.ends_at is None:
            raise ProcessError(f"the engine sent {type(answer).__name__}, which nobody asked for.")
        question.answer = answer
        question.done.set()
        self._question = None

    def _settle(self, done: Done) -> None:
        answer, job = done.completion, self._batches.job(done.number)
        if job is None:
            return  # it was dropped meanwhile
        fault = fault_in_completion(job, answer, vocab_size=self._vocab_size)
        if fault:
            raise ProcessError(f"the engine answered with {fault}.")
        self._finished += len(answer.tokens) - sum(end - start for start, end in answer.observed)
        self._batches.settle(done)
        self._sizing = self._sizing.after_answers(1)


def _failure_of(lost: Lost) -> ProcessError:
    kind = _MemoryRanOutError if lost.memory else ProcessError
    return kind(f"the engine failed: {lost.message}.")


def _size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _open_log(path: Path) -> TextIO:
    path.parent.mkdir(parents=True, exist_ok=True)
    large = path.exists() and path.stat().st_size > _MAX_LOG_BYTES
    return path.open("w" if large else "a", buffering=1, encoding="utf-8", errors="replace")


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
