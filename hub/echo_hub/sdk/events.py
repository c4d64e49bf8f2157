"""What a hub tells your code: what `on_publish`, `on_rollout` and `on_node` are given."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class Publication:
    """A policy version that nodes are offered.

    `size` is that of its artifact in bytes, `delta_size` that of the delta to it from the version
    before, if there is one; `adapter` is its PEFT folder (a whole model where all weights are
    trained), which is kept for a few versions.
    """

    version: int
    size: int
    delta_size: int | None
    adapter: Path


@dataclass(frozen=True)
class Rollout:
    """One sampled answer that passed every check and has its reward.

    `trace` names it for `echo-hub trace`; `version` is the policy that sampled it, `node` the peer
    id of who did. `prompt` and `answer` are text as the tokenizer decodes it, special tokens
    included; `tokens` is the answer's length. `prompt_index` numbers the prompts of a `split`.
    """

    trace: str
    node: str
    version: int
    split: Literal["train", "heldout"]
    prompt_index: int
    prompt: str
    answer: str
    tokens: int
    reward: float


@dataclass(frozen=True)
class NodeEvent:
    """A node came or went. `node` is its peer id; `nodes` how many are in session now."""

    kind: Literal["joined", "left"]
    node: str
    engine: str
    software: str
    nodes: int
