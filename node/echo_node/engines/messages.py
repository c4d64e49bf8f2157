"""What a node and its engine process say to each other over their pipe (see echo_p2p.pipes).

`Load`, `Activate` and `Score` are answered, in order: with their own answer, or with `Failed`. All
else is told as it comes: jobs that are done, refused or lost, and how far the rest has come.
"""

from __future__ import annotations

import msgspec

from echo_node.engines.base import Completion, Dtype, EngineInfo, Job, Resources


class _Frame(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag=True):
    pass


# --- from the node ------------------------------------------------------------------------------


class Load(_Frame, frozen=True):
    """Load the base snapshot in the folder `base`; `threads` 0 leaves the engine's default.

    `engine` is a name that `choice.make_engine` knows; `nice` the priority of the process, as Unix
    counts it.
    """

    base: str
    dtype: Dtype
    threads: int
    max_sequences: int
    engine: str = "auto"
    nice: int = 0
    resources: Resources = Resources()


class Activate(_Frame, frozen=True):
    """Make the version in the folder `adapter` the active one: that of jobs that name none."""

    version: int
    adapter: str


class Release(_Frame, frozen=True):
    """No job will name this version any more: it goes when it is not active and has none."""

    version: int


class Score(_Frame, frozen=True):
    """The log-probabilities of `tokens` under the active version, all but the first."""

    tokens: list[int]


class Order(_Frame, frozen=True):
    """A job to take, by the node's number for it; `version` None is the active one."""

    number: int
    job: Job
    version: int | None = None


class Submit(_Frame, frozen=True):
    """Take these jobs."""

    orders: list[Order]


class Drop(_Frame, frozen=True):
    """Forget these jobs."""

    numbers: list[int]


class Resize(_Frame, frozen=True):
    """Answer at most so many jobs at once."""

    max_sequences: int


class Pace(_Frame, frozen=True):
    """Compute for so many percent of the time; may come before anything else."""

    percent: int


# --- from the engine's process ------------------------------------------------------------------


class Prepare(_Frame, frozen=True):
    """Import what this engine needs; there is no answer, and what fails is said by `Load`."""

    engine: str
    nice: int = 0


class Loaded(_Frame, frozen=True):
    info: EngineInfo


class Activated(_Frame, frozen=True):
    version: int


class Scored(_Frame, frozen=True):
    logprobs: list[float]


class Failed(_Frame, frozen=True):
    """The command could not be carried out; the engine is as it was before it."""

    message: str


class Done(_Frame, frozen=True):
    """A job is answered, by this version."""

    number: int
    version: int
    completion: Completion


class Refused(_Frame, frozen=True):
    """A job that cannot be answered."""

    number: int
    message: str


class Lost(_Frame, frozen=True):
    """All jobs are forgotten: the engine failed. `memory`: because memory ran out; `device`:
    because the accelerator did. With either the process ends."""

    message: str
    memory: bool = False
    device: bool = False


class Beat(_Frame, frozen=True):
    """Sent about once a second while jobs run, and never from beside the work: a process that
    hangs sends none. `sampled` counts tokens since the process began."""

    sampled: int
    running: int


Command = Prepare | Load | Activate | Release | Score | Submit | Drop | Resize | Pace
Answer = Loaded | Activated | Scored | Failed
Told = Done | Refused | Lost | Beat
