"""An engine as calibration needs it: the node's engine process, spoken to in its own messages.

The hub does not import the node's code, and these are the messages' shapes as its process speaks
them; a test holds the two sides against each other.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
import trio

from echo_p2p.errors import EngineError
from echo_p2p.pipes import Child, child_process
from echo_p2p.wire import Sampling, Turns

ENGINE_MODULE = "echo_node.engines.process"
_LOAD_DEADLINE_S = 900.0
_GENERATE_DEADLINE_S = 3600.0


class _Frame(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag=True):
    pass


class EngineInfo(msgspec.Struct, frozen=True):
    name: str
    device: str
    dtype: str
    vocab_size: int
    max_sequences: int
    context: int


class Job(msgspec.Struct, frozen=True):
    prompt: list[int]
    seed: int
    index: int
    sampling: Sampling
    turns: Turns | None = None
    start: int = 0
    keep: bool = False


class Completion(msgspec.Struct, frozen=True):
    tokens: list[int]
    logprobs: list[float]
    finish: Literal["stop", "length"]
    observed: list[tuple[int, int]] = []


class Resources(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    device: str = ""
    memory: int | None = None
    memory_share: float | None = None
    context: int = 0
    tensor_parallel: int = 1


class Load(_Frame, frozen=True):
    base: str
    dtype: Literal["float32", "bfloat16"]
    threads: int
    max_sequences: int
    engine: str = "auto"
    nice: int = 0
    resources: Resources = Resources()


class Loaded(_Frame, frozen=True):
    info: EngineInfo


class Activate(_Frame, frozen=True):
    version: int
    adapter: str


class Activated(_Frame, frozen=True):
    version: int


class Release(_Frame, frozen=True):
    version: int


class Order(_Frame, frozen=True):
    number: int
    job: Job
    version: int | None = None


class Submit(_Frame, frozen=True):
    orders: list[Order]


class Done(_Frame, frozen=True):
    number: int
    version: int
    completion: Completion


class Refused(_Frame, frozen=True):
    number: int
    message: str


class Lost(_Frame, frozen=True):
    message: str
    memory: bool = False
    device: bool = False


class Beat(_Frame, frozen=True):
    sampled: int
    running: int


class Failed(_Frame, frozen=True):
    message: str


_ANSWER: Any = Loaded | Activated | Failed | Lost | Beat
_TOLD: Any = Done | Refused | Lost | Beat
A = TypeVar("A", Loaded, Activated)


class Engine:
    """A loaded engine."""

    def __init__(self, child: Child, info: EngineInfo) -> None:
        self._child = child
        self._active: int | None = None
        self.info = info

    async def activate(self, version: int, adapter: Path) -> None:
        """Make an adapter folder the active policy."""
        command = Activate(version=version, adapter=str(adapter))
        await _ask(self._child, command, Activated, _LOAD_DEADLINE_S)
        if self._active not in (None, version):
            await self._child.send(Release(version=self._active))
        self._active = version

    async def generate(self, jobs: Sequence[Job]) -> list[Completion]:
        """Answer these jobs."""
        orders = [Order(number=number, job=job) for number, job in enumerate(jobs)]
        answers: dict[int, Completion] = {}
        with trio.move_on_after(_GENERATE_DEADLINE_S):
            await self._child.send(Submit(orders=orders))
            while len(answers) < len(jobs):
                told: Done | Refused | Lost | Beat = await self._child.receive(_TOLD)
                if isinstance(told, Refused | Lost):
                    raise EngineError(told.message)
                if isinstance(told, Done):
                    answers[told.number] = told.completion
            return [answers[number] for number in range(len(jobs))]
        raise EngineError(f"{len(jobs)} answers were not there in {_GENERATE_DEADLINE_S:.0f} s.")


@asynccontextmanager
async def open_engine(
    base: Path, dtype: Literal["float32", "bfloat16"], *, threads: int, max_sequences: int
) -> AsyncIterator[Engine]:
    """Run the node's engine process for the length of the block; EngineError if it cannot load."""
    async with child_process(ENGINE_MODULE, name="the engine") as child:
        load = Load(base=str(base), dtype=dtype, threads=threads, max_sequences=max_sequences)
        loaded = await _ask(child, load, Loaded, _LOAD_DEADLINE_S)
        yield Engine(child, loaded.info)


async def _ask(child: Child, command: _Frame, kind: type[A], deadline_s: float) -> A:
    with trio.move_on_after(deadline_s):
        await child.send(command)
        answer = await child.receive(_ANSWER)
        while isinstance(answer, Beat):  # of the work before
            answer = await child.receive(_ANSWER)
        if isinstance(answer, Failed | Lost):
            raise EngineError(answer.message)
        if isinstance(answer, kind):
            return answer
        raise EngineError(f"{type(command).__name__} was answered with {type(answer).__name__}.")
    raise EngineError(f"the engine did not answer {type(command).__name__} in {deadline_s:.0f} s.")
