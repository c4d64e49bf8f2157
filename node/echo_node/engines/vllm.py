"""The engine for graphics cards: vLLM in this process, with continuous batching and a prefix cache.

Promises: an answer is by the version it was submitted for, whatever is added or removed while it
runs; versions that are adapters run side by side. Each version has a name and a number that were
never used before in this process: vLLM's prefix cache knows an adapter by its name and its weights
by their number, and would serve the old ones under a name or number used again.

vLLM is told at its start how large adapters are, so it starts with the first version.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from echo_node.engines.adapter import Adapter
from echo_node.engines.base import Completion, Dtype, EngineInfo, Finished, Job, next_version
from echo_node.engines.snapshot import check_base
from echo_node.engines.vllm_core import Core, Event, Facts, Options, look_at, prepare
from echo_node.engines.vllm_versions import Shapes, check_fits, rank_of, shapes_of
from echo_node.engines.whole import read_version
from echo_p2p.errors import EngineError

_HELD_VERSIONS = 16


@dataclass(frozen=True)
class _Version:
    folder: Path
    handle: Any  # what `Core.ask` takes


@dataclass
class _Answer:
    number: int
    version: int
    job: Job
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


class VllmEngine:
    """See `echo_node.engines.base.Engine`. `reused` counts tokens of prompts not computed again."""

    def __init__(self, options: Options) -> None:
        self.reused = 0
        self._options = options
        self._limit = options.max_sequences
        self._base: Path | None = None
        self._dtype: Dtype = "float32"
        self._facts: Facts | None = None
        self._weights: Shapes = {}
        self._core: Core | None = None
        self._shape: Mapping[str, Any] | None = None  # of this run's adapters; None: whole models
        self._present: int | None = None  # the whole model whose weights vLLM has
        self._versions: dict[int, _Version] = {}
        self._waiting: deque[_Answer] = deque()
        self._asked: dict[str, _Answer] = {}
        self._scores: dict[str, list[float]] = {}
        self._done: list[Finished] = []
        self._names = 0
        self._sampled = 0

    def load(self, base: Path, dtype: Dtype) -> EngineInfo:
        """Look at a base snapshot; EngineError says what is wrong with it."""
        check_base(base)
        prepare(self._options)
        self._facts, self._options = look_at(base, dtype, self._options)
        self._base, self._dtype, self._weights = base, dtype, shapes_of(base)
        return EngineInfo(
            name="vllm",
            device=self._facts.device,
            dtype=dtype,
            vocab_size=self._facts.vocab_size,
            max_sequences=self._options.max_sequences,
            context=self._facts.context,
        )

    # --- versions -------------------------------------------------------------------------------

    def add(self, version: int, folder: Path) -> None:
        """Make a version available; on EngineError all is as before."""
        if self._base is None:
            raise EngineError("no base model is loaded.")
        if len(self._versions) >= _HELD_VERSIONS:
            raise EngineError(f"{len(self._versions)} versions are held already.")
        candidate = read_version(folder)
        check_fits(candidate, self._weights)
        shape = candidate.shape if isinstance(candidate, Adapter) else None
        if self._core is None:
            self._core = self._start(rank_of(candidate))
            self._shape = shape
        elif shape != self._shape:
            raise EngineError("the version is of another shape than this run's earlier ones.")
        self._names += 1
        name = f"version-{version}-{self._names}"
        handle = name if shape is None else self._add_adapter(name, folder)
        self._versions[version] = _Version(folder, handle)

    def _start(self, rank: int) -> Core:
        assert self._base is not None
        try:
            return Core(self._base, self._dtype, self._options, rank=rank)
        except (EngineError, MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # vLLM has many reasons, and no class of its own for them
            raise EngineError(
                f"vLLM cannot start with the base in {self._base}: {error}"
            ) from error

    def _add_adapter(self, name: str, folder: Path) -> Any:
        assert self._core is not None
        try:
            return self._core.add_adapter(name, self._names, folder)
        except (ValueError, RuntimeError, OSError) as error:
            raise EngineError(f"vLLM cannot load the adapter in {folder}: {error}") from error

    def remove(self, version: int) -> None:
        """Unload a version, of which no job runs."""
        gone = self._versions.pop(version)
        if self._core is not None and self._shape is not None:
            self._core.remove_adapter(gone.handle)

    def _make_present(self, version: int) -> None:
        """Of whole models: have the weights of this one; nothing runs."""
        if self._shape is None and self._present != version:
            assert self._core is not None
            self._present = None
            self._core.reload(self._versions[version].folder)
            self._present = version

    # --- answers --------------------------------------------------------------------------------

    def submit(self, number: int, version: int, job: Job) -> None:
        """Take a job, a single turn."""
        self._waiting.append(_Answer(number, version, job))

    def step(self) -> list[Finished]:
        """One round of vLLM's scheduler; the jobs that are done with it."""
        self._ask()
        self._round()
        done, self._done = self._done, []
        return done

    def _ask(self) -> None:
        """Hand jobs to vLLM while it may have more."""
        if self._shape is None and not self._asked and self._waiting:
            present = next_version({one.version for one in self._waiting}, self._present)
            assert present is not None
            self._make_present(present)
        held_back: deque[_Answer] = deque()
        while self._waiting and len(self._asked) < self._limit:
            answer = self._waiting.popleft()
            if self._shape is None and answer.version != self._present:
                held_back.append(answer)
                continue
            assert self._core is not None
            name = self._new_name()
            self._core.ask(name, answer.job, self._versions[answer.version].handle)
            self._asked[name] = answer
        self._waiting.extendleft(reversed(held_back))

    def _new_name(self) -> str:
        self._names += 1
        return str(self._names)

    def _round(self) -> None:
        if self._core is not None and (self._asked or self._scores):
            for event in self._core.step():
                self._hear(event)

    def _hear(self, event: Event) -> None:
        if event.request in self._scores:
            self._scores[event.request] += event.prompt_logprobs or []
            return
        answer = self._asked.get(event.request)
        if answer is None:  # dropped while this round was computed
            return
        self.reused += event.reused
        answer.tokens += event.tokens
        answer.logprobs += event.logprobs
        self._sampled += len(event.tokens)
        if event.finish == "failed":
            raise EngineError("vLLM gave up an answer.")
        if event.finish:
            del self._asked[event.request]
            completion = Completion(answer.tokens, answer.logprobs, event.finish)
            self._done.append(Finished(answer.number, completion))

    def score(self, version: int, tokens: Sequence[int]) -> list[float]:
        """Raw log-probability of each token but the first; jobs that run go on meanwhile."""
        assert self._core is not None
        assert self._facts is not None
        if not 2 <= len(tokens) < self._facts.context:
            raise EngineError(f"{len(tokens)} tokens cannot be scored by this engine.")
        while self._shape is None and self._asked and self._present != version:
            self._round()  # these are owed under other weights
        self._make_present(version)
        name = self._new_name()
        self._scores[name] = []
        self._core.ask_score(name, tokens, self._versions[version].handle)
        try:
            while len(self._scores[name]) < len(tokens) - 1:
                self._round()
            return self._scores[name]
        finally:
            del self._scores[name]

    def drop(self, numbers: Collection[int]) -> None:
        """Forget jobs, those of them that are running."""
        gone = set(numbers)
        self._waiting = deque(one for one in self._waiting if one.number not in gone)
        self._done = [one for one in self._done if one.number not in gone]
        names = [name for name, one in self._asked.items() if one.number in gone]
        for name in names:
            del self._asked[name]
        if self._core is not None and names:
            self._core.abort(names)

    @property
    def running(self) -> int:
        """Jobs that were submitted, and neither finished nor dropped."""
        return len(self._waiting) + len(self._asked) + len(self._done)

    @property
    def sampled(self) -> int:
        """Tokens sampled so far."""
        return self._sampled

    def resize(self, max_sequences: int) -> None:
        """Answer at most so many jobs at once, from now on."""
        self._limit = min(max_sequences, self._options.max_sequences)

    def close(self) -> None:
        """Release memory, and the processes of other cards."""
        if self._core is not None:
            self._core.close()
            self._core = None


__all__ = ["Options", "VllmEngine"]
