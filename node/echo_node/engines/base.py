"""The engine interface: what turns leases into tokens.

Invariants every engine keeps: token ids in, token ids out; tokens are drawn by
`echo_p2p.sampling` and by nothing else; log-probabilities are raw (temperature 1) and of the
sampled tokens; every answer of one `generate` call is by the one version active when it began.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from echo_p2p.wire import Sampling, Turns


class EngineInfo(msgspec.Struct, frozen=True):
    """What an engine is: shown to the volunteer and told to the hub in `Hello`."""

    name: str
    device: str
    dtype: str
    vocab_size: int
    max_sequences: int


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


class Engine(Protocol):
    """One loaded base model with at most one active adapter version."""

    def load(self, base: Path, dtype: Literal["float32", "bfloat16"]) -> EngineInfo:
        """Load a base snapshot; EngineError says what is wrong with it."""
        ...

    def activate(self, version: int, adapter: Path) -> None:
        """Make a version's folder the active policy: a PEFT adapter, or a whole model's weights.

        On EngineError the last one stays.
        """
        ...

    def generate(self, jobs: Sequence[Job]) -> list[Completion]:
        """Sample every job under the active version; results in the order of the jobs.

        Jobs are single turns; `dialogues` makes longer answers of them.
        """
        ...


class AsyncEngine(Protocol):
    """An engine as the worker uses it: in another process, one call at a time.

    A `ProcessError` means that the process died or hung; the next call finds another one, with the
    same base and version.
    """

    async def activate(self, version: int, adapter: Path) -> None: ...

    async def generate(self, jobs: Sequence[Job]) -> list[Completion]: ...
