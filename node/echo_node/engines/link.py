"""What is said between a node and one engine process after the other, and what it means.

Promises: a process at work that samples nothing for `stall_s`, or does not answer a command in
time, is a `ProcessError`; so is one that says what no engine says. What it was answering is then
lost, and the next process is given fewer answers at once (`sizing`).
"""

from __future__ import annotations

import logging
from collections import deque

import trio

from echo_node.engines.base import fault_in_completion
from echo_node.engines.batches import Batches
from echo_node.engines.messages import (
    Answer,
    Beat,
    Command,
    Done,
    Drop,
    Lost,
    Refused,
    Submit,
    Told,
)
from echo_node.engines.patience import LOOK_S, stall_s
from echo_node.engines.sizing import Sizing
from echo_node.notice import Notice
from echo_p2p.errors import EngineError, ProcessError
from echo_p2p.pipes import Child

log = logging.getLogger(__name__)


class Question:
    """A command that is answered. One at a time."""

    def __init__(self, command: Command, deadline_s: float) -> None:
        self.command = command
        self.deadline_s = deadline_s
        self.ends_at: float | None = None
        """When it must be answered; None before it was sent."""
        self.answer: Answer | None = None
        self.error: EngineError | ProcessError | None = None
        self.done = trio.Event()


class MemoryRanOutError(ProcessError):
    """A process ended because memory ran out."""


class Link:
    """The state of the talk, and its three tasks while a process runs: tell, watch, listen."""

    def __init__(self, sizing: Sizing) -> None:
        self.restarts = 0
        self.failures = 0
        """Times that jobs were refused or lost; all that ran at once count as one."""
        self._sizing = sizing
        self._notice = Notice()
        self._question: Question | None = None
        self._outgoing: deque[Command] = deque()
        self._batches = Batches()
        self._child: Child | None = None
        self._duty = 100  # percent of the time for which it computes
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
            await trio.sleep(LOOK_S)
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
                    if told.memory or told.device:
                        raise failure_of(told)
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
        asked = self._batches.version(done.number)
        if done.version != asked:
            fault = f"version {done.version}, where {asked} was asked for"
        if fault:
            raise ProcessError(f"the engine answered with {fault}.")
        self._finished += len(answer.tokens) - sum(end - start for start, end in answer.observed)
        self._batches.settle(done)
        self._sizing = self._sizing.after_answers(1)

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


def failure_of(lost: Lost) -> ProcessError:
    """What a process that ended so is to its callers."""
    if lost.device:
        return ProcessError(
            f"the graphics card stopped working for the engine ({lost.message}), which starts "
            "anew. If this comes again: restart the computer, and update the card's driver."
        )
    kind = MemoryRanOutError if lost.memory else ProcessError
    return kind(f"the engine failed: {lost.message}.")
