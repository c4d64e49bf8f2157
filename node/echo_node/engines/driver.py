"""Drives an engine: what is the same for all of them, whatever computes the tokens.

Promises: a version is used only if it gives its canary the hub's log-probabilities (finite ones, if
the hub gave it none), otherwise the last good one stays; a job is of the version that was active
when it came, all its turns too; a job that the auditor could not derive again never reaches the
engine; a failure loses the jobs that ran, says so, and leaves the driver usable.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from echo_node.engines.base import (
    Completion,
    Dtype,
    Engine,
    EngineInfo,
    Finished,
    Job,
    fault_in_job,
)
from echo_node.engines.dialogues import Course, reply_of
from echo_p2p.canary import difference, read_canary
from echo_p2p.dialogue import TokenReply
from echo_p2p.errors import EngineError, ManifestError
from echo_p2p.text import TurnText

CANARY_TOKENS = 8

Texts = Callable[[Sequence[int]], TurnText]
"""The base's tokenizer, for turns that end with these tokens."""


@dataclass(frozen=True)
class Answered:
    """A job that is done, and the version that answered it."""

    number: int
    version: int
    completion: Completion


@dataclass
class _Running:
    version: int
    course: Course
    reply: TokenReply | None


@dataclass
class _Version:
    folder: Path
    released: bool = False
    jobs: set[int] = field(default_factory=set)


class Driver:
    """One engine, and the versions and jobs it has.

    Args:
        texts: for jobs whose turns name an environment.
    """

    def __init__(self, engine: Engine, texts: Texts | None = None) -> None:
        self.engine = engine
        self.active: int | None = None
        self.info: EngineInfo | None = None
        self._texts = texts
        self._versions: dict[int, _Version] = {}
        self._running: dict[int, _Running] = {}

    @property
    def running(self) -> int:
        """Jobs that were taken and are not done."""
        return len(self._running)

    def load(self, base: Path, dtype: Dtype) -> EngineInfo:
        """Load a base snapshot; EngineError says what is wrong with it."""
        self.info = self.engine.load(base, dtype)
        return self.info

    def activate(self, version: int, folder: Path) -> None:
        """Make a version the one of jobs to come; on EngineError the last one stays."""
        if self.info is None:
            raise EngineError("no base model is loaded.")
        known = self._versions.get(version)
        if known is not None and known.folder != folder:
            raise EngineError(f"version {version} is here already, from {known.folder}.")
        if known is None:
            self.engine.add(version, folder)
            try:
                self._check(version, folder)
            except BaseException:
                self.engine.remove(version)
                raise
            self._versions[version] = _Version(folder)
        self._versions[version].released = False
        self.active = version
        self._tidy()

    def _check(self, version: int, folder: Path) -> None:
        """EngineError unless the version says what its hub says it must, or at least numbers."""
        assert self.info is not None
        try:
            canary = read_canary(folder)
        except ManifestError as error:
            raise EngineError(f"version {version} is not used: {error.message}") from error
        longest = self.info.context
        if canary is None or any(len(one.tokens) > longest for one in canary.sequences):
            tokens = list(range(min(CANARY_TOKENS, self.info.vocab_size, longest)))
            if not all(map(math.isfinite, self.engine.score(version, tokens))):
                raise EngineError(f"version {version} computes non-finite logits; it is not used.")
            return
        found = difference(canary, partial(self.engine.score, version))
        if math.isinf(found):
            raise EngineError(f"version {version} computes non-finite logits; it is not used.")
        if not found <= canary.tolerance:
            raise EngineError(
                f"version {version} computes other log-probabilities here than at the hub: by "
                f"{found:.3g} on average, where {canary.tolerance:g} is allowed; it is not used.",
                fix="If this stays, try another engine (--engine) or look after the graphics "
                "card: its memory or its driver may be faulty.",
            )

    def release(self, version: int) -> None:
        """No job will name this version: forget it when it is not active and has none."""
        if version in self._versions:
            self._versions[version].released = True
            self._tidy()

    def score(self, tokens: Sequence[int]) -> list[float]:
        """Log-probabilities under the active version of all tokens but the first."""
        return self.engine.score(self._named(None), tokens)

    def submit(self, number: int, job: Job, version: int | None = None) -> None:
        """Take a job, of the active version if it names none; EngineError if it is refused."""
        version = self._named(version)
        assert self.info is not None
        fault = fault_in_job(job, vocab_size=self.info.vocab_size)
        room = self.info.context - len(job.prompt)
        if fault:
            raise EngineError(f"a job is refused: {fault}.")
        if room < 1:
            raise EngineError(
                f"a prompt of {len(job.prompt)} tokens leaves no room in {self.info.context}."
            )
        reply = None
        if job.turns is not None and job.turns.environment:
            if self._texts is None:
                raise EngineError("this engine has no tokenizer for dialogues.")
            reply = reply_of(job.turns, self._texts(job.sampling.stop))
        # the context ends an answer as its limit does, in whichever turn it is full
        limit = min(job.sampling.max_new_tokens, room)
        course = Course(replace(job, sampling=replace(job.sampling, max_new_tokens=limit)))
        self.engine.submit(number, version, course.next_turn)
        self._running[number] = _Running(version, course, reply)
        self._versions[version].jobs.add(number)

    def _named(self, version: int | None) -> int:
        version = self.active if version is None else version
        if version is None:
            raise EngineError("no policy version is active.")
        if version not in self._versions:
            raise EngineError(f"version {version} is not here any more.")
        return version

    def step(self) -> list[Answered]:
        """Let the engine do one round of work; the jobs that are done with all their turns.

        EngineError, MemoryError or torch's: the engine failed, and no job runs any more.
        """
        try:
            return [done for one in self.engine.step() if (done := self._take(one)) is not None]
        except Exception:
            self.drop(list(self._running))
            raise

    def _take(self, finished: Finished) -> Answered | None:
        number = finished.number
        mine = self._running[number]
        due = mine.course.say(finished.completion)
        if (
            due
            and mine.reply is not None
            and mine.course.hear(mine.reply(mine.course.dialogue.turns))
        ):
            self.engine.submit(number, mine.version, mine.course.next_turn)
            return None
        self._forget(number)
        return Answered(number, mine.version, mine.course.completion)

    def drop(self, numbers: Collection[int]) -> None:
        """Forget jobs."""
        known = [number for number in numbers if number in self._running]
        self.engine.drop(known)
        for number in known:
            self._forget(number)

    def _forget(self, number: int) -> None:
        mine = self._running.pop(number)
        self._versions[mine.version].jobs.discard(number)
        self._tidy()

    def _tidy(self) -> None:
        for version, state in list(self._versions.items()):
            if state.released and not state.jobs and version != self.active:
                del self._versions[version]
                self.engine.remove(version)

    def generate(self, jobs: Sequence[Job], version: int | None = None) -> list[Completion]:
        """Answer jobs under one version, all of them; results in their order."""
        answers: dict[int, Completion] = {}
        for number, job in enumerate(jobs):
            try:
                self.submit(number, job, version)
            except EngineError:
                self.drop(list(self._running))
                raise
        while self._running:
            for done in self.step():
                answers[done.number] = done.completion
        return [answers[number] for number in range(len(jobs))]
