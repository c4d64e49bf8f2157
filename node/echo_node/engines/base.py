"""The engine interface: what turns leases into tokens.

Invariants every engine keeps: token ids in, token ids out; tokens are drawn by
`echo_p2p.sampling` and by nothing else; log-probabilities are raw (temperature 1) and of the
sampled tokens; every answer is by the one version that its job named.

An engine is driven step by step by one thread (`driver.Driver`): answers finish one by one, jobs
join while others run, and versions come and go while answers are in flight. It knows single turns
of answers and no "active" version.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from echo_p2p.wire import Sampling, Turns

Dtype = Literal["float32", "bfloat16"]


class EngineInfo(msgspec.Struct, frozen=True):
    """What an engine is: shown to the volunteer and told to the hub in `Hello`.

    `context` is the most tokens that prompt and answer may have together.
    """

    name: str
    device: str
    dtype: str
    vocab_size: int
    max_sequences: int
    context: int


class Resources(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which part of the machine an engine may use; what is left at its default, it chooses itself.

    `device`: one of several, as torch names it: "cuda:1", or for vLLM as many as
    `tensor_parallel`: "cuda:0,1". `memory`: most bytes on each device, or of unified memory;
    `memory_share`: the same as a share of what the device has. `context`: tokens of prompt and
    answer that it sets room aside for; 0 is as many as the base allows. `tensor_parallel`: cards
    that share each layer. How long it rests is not here: the process rests for any engine
    (`messages.Pace`).
    """

    device: str = ""
    memory: int | None = None
    memory_share: float | None = None
    context: int = 0
    tensor_parallel: int = 1


class Job(msgspec.Struct, frozen=True):
    """One answer to sample: rollout `index` of a lease with this prompt and seed.

    With `turns`, one in several turns. A single turn out of several has the turns before it at the
    end of `prompt`; its first token has the noise of position `start`. `keep`: another turn may
    follow, so what the engine has computed of this one is worth keeping.
    """

    prompt: list[int]
    seed: int
    index: int
    sampling: Sampling
    turns: Turns | None = None
    start: int = 0
    keep: bool = False


class Completion(msgspec.Struct, frozen=True):
    """The answer to a `Job`: `logprobs[i]` belongs to `tokens[i]`.

    `observed` are the half-open spans of tokens that were not sampled; see `wire.Rollout`.
    """

    tokens: list[int]
    logprobs: list[float]
    finish: Literal["stop", "length"]
    observed: list[tuple[int, int]] = []


class Finished(msgspec.Struct, frozen=True):
    """A job that is done, by the number it was submitted under."""

    number: int
    completion: Completion


class Engine(Protocol):
    """One loaded base model, and any number of versions of its policy."""

    def load(self, base: Path, dtype: Dtype) -> EngineInfo:
        """Load a base snapshot; EngineError says what is wrong with it."""
        ...

    def add(self, version: int, folder: Path) -> None:
        """Make a version available: a folder with a PEFT adapter, or with a whole model's weights.

        Jobs of other versions may be running. On EngineError all is as before.
        """
        ...

    def remove(self, version: int) -> None:
        """Forget a version, of which no job runs."""
        ...

    def score(self, version: int, tokens: Sequence[int]) -> list[float]:
        """Raw log-probability of each token but the first, given those before it.

        Jobs may be running, and are not disturbed.
        """
        ...

    def submit(self, number: int, version: int, job: Job) -> None:
        """Take a job, a single turn that `fault_in_job` finds nothing wrong with.

        `number` is the caller's name for it, unique among those running.
        """
        ...

    def step(self) -> list[Finished]:
        """Do one bounded round of work; the jobs that are done with it.

        EngineError, MemoryError, or torch's out-of-memory error: all running jobs are lost.
        """
        ...

    def drop(self, numbers: Collection[int]) -> None:
        """Forget jobs, those of them that are running."""
        ...

    @property
    def running(self) -> int:
        """Jobs that were submitted, and neither finished nor dropped."""
        ...

    @property
    def sampled(self) -> int:
        """Tokens sampled so far; never falls."""
        ...

    def resize(self, max_sequences: int) -> None:
        """Answer at most so many jobs at once, from now on; no more than it was made for."""
        ...

    def close(self) -> None:
        """Release what is held; nothing else is called afterwards."""
        ...


class AsyncEngine(Protocol):
    """An engine as the worker uses it: in another process.

    A `ProcessError` means that the process died or hung; the next call finds another one, with the
    same base and version.
    """

    @property
    def capacity(self) -> int:
        """How many answers it can be given at once, now."""
        ...

    @property
    def failures(self) -> int:
        """Times that it failed at its jobs; those that ran at once count as one."""
        ...

    async def activate(self, version: int, adapter: Path) -> None:
        """Make a version that of jobs to come; on EngineError the last one stays."""
        ...

    def release(self, version: int) -> None:
        """No job will name this version any more."""
        ...

    async def generate(
        self,
        jobs: Sequence[Job],
        *,
        version: int | None = None,
        finished: Callable[[], None] | None = None,
    ) -> list[Completion]:
        """Answer jobs, all by one version: this one, or the active one.

        `finished` is called as each of them is done. Several calls may be under way.
        """
        ...


def next_version(waiting: Collection[int], present: int | None) -> int | None:
    """Which version to work on, for an engine that has room for the weights of one at a time.

    The oldest that has jobs: what it owes is the first to become stale.

    Args:
        waiting: versions that have jobs.
        present: the one whose weights are loaded; it stays if there is no work.
    """
    return min(waiting, default=present)


def fault_in_job(job: Job, *, vocab_size: int) -> str:
    """Why no engine must answer a job as it stands; empty if there is no reason.

    The auditor derives every token again from temperature, top-k and top-p as
    `echo_p2p.sampling` defines them: what lies outside that definition is refused here.
    """
    how = job.sampling
    faults = (
        (
            not job.prompt or not 0 <= min(job.prompt) <= max(job.prompt) < vocab_size,
            "its prompt is empty or has a token outside the vocabulary",
        ),
        (not 0 < how.temperature <= 100, f"temperature {how.temperature} is not in (0, 100]"),
        (how.top_k < 0, f"top_k {how.top_k} is negative"),
        (not 0 < how.top_p <= 1, f"top_p {how.top_p} is not in (0, 1]"),
        (how.max_new_tokens < 1, f"it may have {how.max_new_tokens} tokens"),
        (not 0 <= job.seed < 2**63, f"seed {job.seed} is not in [0, 2^63)"),
        (job.index < 0 or job.start < 0, "its noise has no such place"),
    )
    return next((sentence for wrong, sentence in faults if wrong), "")


def fault_in_completion(job: Job, answer: Completion, *, vocab_size: int) -> str:
    """What no engine in its right mind says to a job; empty if there is nothing."""
    tokens, most = answer.tokens, job.sampling.max_new_tokens
    faults = (
        (not 1 <= len(tokens) <= most, f"{len(tokens)} tokens, where 1 to {most} were asked for"),
        (
            len(answer.logprobs) != len(tokens) or not all(map(math.isfinite, answer.logprobs)),
            "log-probabilities that are missing or not finite",
        ),
        (
            not 0 <= min(tokens, default=0) <= max(tokens, default=0) < vocab_size,
            "tokens outside the vocabulary",
        ),
    )
    return next((sentence for wrong, sentence in faults if wrong), "")
