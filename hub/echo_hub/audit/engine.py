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


class Load(_Frame, frozen=True):
    base: str
    dtype: Literal["float32", "bfloat16"]
    threads: int
    max_sequences: int


class Loaded(_Frame, frozen=True):
    info: EngineInfo


class Activate(_Frame, frozen=True):
    version: int
    adapter: str


class Activated(_Frame, frozen=True):
    version: int


class Generate(_Frame, frozen=True):
    jobs: list[Job]


class Generated(_Frame, frozen=True):
    completions: list[Completion]


class Failed(_Frame, frozen=True):
    message: str


_ANSWER: Any = Loaded | Activated | Generated | Failed
A = TypeVar("A", Loaded, Activated, Generated)


class Engine:
    """A loaded engine."""

    def __init__(self, child: Child, info: EngineInfo) -> None:
        self._child = child
        self.info = info

    async def activate(self, version: int, adapter: Path) -> None:
        """Make an adapter folder the active policy."""
        await _ask(
            self._child,
            Activate(version=version, adapter=str(adapter)),
            Activated,
            _LOAD_DEADLINE_S,
        )

    async def generate(self, jobs: Sequence[Job]) -> list[Completion]:
        """Answer these jobs."""
        command = Generate(jobs=list(jobs))
        return (await _ask(self._child, command, Generated, _GENERATE_DEADLINE_S)).completions


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
    answer = await child.call(command, _ANSWER, deadline_s=deadline_s)
    if isinstance(answer, Failed):
        raise EngineError(answer.message)
    if not isinstance(answer, kind):
        raise EngineError(f"{type(command).__name__} was answered with {type(answer).__name__}.")
    return answer
