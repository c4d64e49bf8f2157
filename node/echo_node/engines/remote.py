"""The node's side of its engine process: keeps one running, and gives up on one that hangs.

Promises: every call ends by a deadline, with an answer, an `EngineError` (the engine said no and
is as before) or a `ProcessError` (its process died or hung). After a `ProcessError` the next call
finds a new process with the same base loaded and the same version active. A process that fails
again and again without one answer in between is not started for ever: `run` raises `EngineError`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal, TextIO, TypeVar, cast

import trio

from echo_node.engines.base import Completion, EngineInfo, Job
from echo_node.engines.messages import (
    Activate,
    Activated,
    Answer,
    Command,
    Failed,
    Generate,
    Generated,
    Load,
    Loaded,
)
from echo_p2p.errors import EngineError, ProcessError, WireError
from echo_p2p.nursery import open_nursery
from echo_p2p.pipes import Child, child_process

MAX_FAILURES = 5
"""Processes that may fail in a row before the engine is given up."""

_SLOWEST_TOKENS_PER_S = 5.0  # assumed until the engine has shown its own rate
_SLOWEST_READ_BYTES_PER_S = 10e6
_START_S = 180.0  # importing torch on a cold, slow disk
_ACTIVATE_S = 300.0
_GRACE_S = 60.0
_PATIENCE = 10.0  # times slower than its own rate is a hang
_MAX_LOG_BYTES = 4 << 20

A = TypeVar("A", bound=Answer)
log = logging.getLogger(__name__)


def generate_deadline_s(tokens: int, rate: float | None) -> float:
    """Time in which an engine must have sampled `tokens`, given its rate so far in tokens/s."""
    return _GRACE_S + tokens / (_SLOWEST_TOKENS_PER_S if rate is None else rate / _PATIENCE)


def restart_delay_s(failures: int) -> float:
    """Pause before the next process after `failures` failed ones in a row."""
    return min(30.0, 0.25 * 2.0 ** min(failures, 10))


class _Call:
    def __init__(self, command: Command, deadline_s: float) -> None:
        self.command = command
        self.deadline_s = deadline_s
        self.answer: Answer | None = None
        self.error: ProcessError | WireError | None = None
        self.done = trio.Event()


class RemoteEngine:
    """One engine in a process of its own. Made by `open_engine`; calls are made one at a time."""

    def __init__(self, *, threads: int, max_sequences: int, log_path: Path) -> None:
        self._threads = threads
        self._max_sequences = max_sequences
        self._log_path = log_path
        self._send, self._calls = trio.open_memory_channel[_Call](0)
        self._setup: dict[type[Command], _Call] = {}  # what a new process has to do first
        self._child: Child | None = None
        self._rate: float | None = None
        self.restarts = 0

    async def load(self, base: Path, dtype: Literal["float32", "bfloat16"]) -> EngineInfo:
        """Load a base snapshot; EngineError says what is wrong with it."""
        size = await trio.to_thread.run_sync(_size_of, base)
        command = Load(
            base=str(base),
            dtype=dtype,
            threads=self._threads,
            max_sequences=self._max_sequences,
        )
        answer = await self._ask(command, Loaded, _START_S + size / _SLOWEST_READ_BYTES_PER_S)
        return answer.info

    async def activate(self, version: int, adapter: Path) -> None:
        """Make a PEFT adapter folder the active policy; on EngineError the last one stays."""
        await self._ask(Activate(version=version, adapter=str(adapter)), Activated, _ACTIVATE_S)

    async def generate(self, jobs: Sequence[Job]) -> list[Completion]:
        """Sample every job under the active version; results in the order of the jobs."""
        most = sum(job.sampling.max_new_tokens for job in jobs)
        start = time.monotonic()
        deadline_s = generate_deadline_s(most, self._rate)
        answer = await self._ask(Generate(jobs=list(jobs)), Generated, deadline_s)
        if len(answer.completions) != len(jobs):
            raise EngineError(f"{len(answer.completions)} answers came to {len(jobs)} jobs.")
        tokens = sum(len(completion.tokens) for completion in answer.completions)
        rate = max(1, tokens) / max(1e-6, time.monotonic() - start)
        self._rate = (rate + (self._rate or rate)) / 2
        return answer.completions

    def kill(self) -> None:
        """End the engine's process at once; for leaving in a hurry."""
        if self._child is not None:
            self._child.kill()

    async def _ask(self, command: Command, kind: type[A], deadline_s: float) -> A:
        call = _Call(command, deadline_s)
        await self._send.send(call)
        await call.done.wait()
        if call.error is not None:
            raise call.error
        if isinstance(call.answer, Failed):
            raise EngineError(call.answer.message)
        if not isinstance(command, Generate):
            self._setup[type(command)] = call
        return cast(A, call.answer)

    async def run(self) -> None:
        """Keep a process running until cancelled; EngineError if none stays alive."""
        failures = 0
        with _open_log(self._log_path) as file:
            while True:
                answered = await self._run_one(file)
                failures = 1 if answered else failures + 1
                self.restarts += 1
                if failures >= MAX_FAILURES:
                    raise EngineError(
                        f"the engine's process failed {failures} times in a row.",
                        fix=f"Its last words are in {self._log_path}.",
                    )
                await trio.sleep(restart_delay_s(failures))

    async def _run_one(self, file: TextIO) -> bool:
        """Run one process until it fails; whether it answered anything asked of it."""
        answered = False
        call = await self._calls.receive()
        async with child_process(
            "echo_node.engines.process",
            name="the engine",
            env={"TRANSFORMERS_VERBOSITY": "error"},
            stderr_line=lambda line: print(line, file=file),
        ) as child:
            self._child = child
            try:
                await self._set_up(child, call.command)
                while True:
                    call.answer = await self._carry_out(child, call)
                    answered = True
                    call.done.set()
                    call = await self._calls.receive()
            except (ProcessError, WireError) as error:
                log.debug("%s", error.message)  # who called reports it
                child.kill()
                call.error = error
            finally:
                self._child = None
                call.done.set()
        return answered

    async def _set_up(self, child: Child, first: Command) -> None:
        """Bring a new process to where the last one was, unless `first` starts afresh."""
        for setup in () if isinstance(first, Load) else self._setup.values():
            answer = await self._carry_out(child, setup)
            if isinstance(answer, Failed):
                raise ProcessError(f"a new engine cannot go on: {answer.message}")

    async def _carry_out(self, child: Child, call: _Call) -> Answer:
        answer: Answer = await child.call(
            call.command,
            Answer,  # type: ignore[arg-type]
            deadline_s=call.deadline_s,
        )
        return answer


def _size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _open_log(path: Path) -> TextIO:
    path.parent.mkdir(parents=True, exist_ok=True)
    large = path.exists() and path.stat().st_size > _MAX_LOG_BYTES
    return path.open("w" if large else "a", buffering=1, encoding="utf-8", errors="replace")


@asynccontextmanager
async def open_engine(
    *, threads: int, max_sequences: int, log_path: Path
) -> AsyncIterator[RemoteEngine]:
    """An engine process for the length of a block.

    Args:
        threads: CPU threads; 0 leaves the engine's default.
        max_sequences: most answers in one batch.
        log_path: gets what the process writes to stderr.
    """
    engine = RemoteEngine(threads=threads, max_sequences=max_sequences, log_path=log_path)
    async with open_nursery() as nursery:
        nursery.start_soon(engine.run)
        yield engine
        nursery.cancel_scope.cancel()
