"""What a node and its engine process say to each other over their pipe (see echo_p2p.pipes)."""

from __future__ import annotations

from typing import Literal

import msgspec

from echo_node.engines.base import Completion, EngineInfo, Job


class _Frame(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag=True):
    pass


class Load(_Frame, frozen=True):
    """Load the base snapshot in the folder `base`; `threads` 0 leaves torch's default."""

    base: str
    dtype: Literal["float32", "bfloat16"]
    threads: int
    max_sequences: int


class Loaded(_Frame, frozen=True):
    info: EngineInfo


class Activate(_Frame, frozen=True):
    """Make the version in the folder `adapter` the active policy."""

    version: int
    adapter: str


class Activated(_Frame, frozen=True):
    version: int


class Generate(_Frame, frozen=True):
    """Answer these jobs under the active version."""

    jobs: list[Job]


class Generated(_Frame, frozen=True):
    completions: list[Completion]


class Failed(_Frame, frozen=True):
    """The command could not be carried out; the engine is as it was before it."""

    message: str


Command = Load | Activate | Generate
Answer = Loaded | Activated | Generated | Failed
