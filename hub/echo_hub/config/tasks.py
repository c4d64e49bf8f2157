"""`[task]`, `[scoring]`, `[evaluation]`: what is asked, and what answers are worth."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from echo_hub.config.fields import Positive
from echo_p2p.toml import Strict


class TaskSection(Strict):
    name: str = "addmix3"
    """`addmix3`, `few-shot-addition`, or `reasoning-gym:<dataset>`."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Passed to the task."""
    template: Literal["raw", "chat"] = "raw"
    """`chat` wraps each prompt as a user message in the tokenizer's chat template."""


class ScoringSection(Strict):
    processes: Positive = 1
    """Scorer processes."""
    timeout_s: Annotated[float, Field(gt=0)] = 20.0
    """A reward that takes longer is a recorded failure, never a zero; its scorer is killed."""


class EvaluationSection(Strict):
    prompts: Annotated[int, Field(ge=0, le=100_000)] = 256
    """Held-out prompts, one sampled answer each; 0 evaluates nothing."""
    every: Annotated[int, Field(ge=0)] = 0
    """Updates between evaluations; 0 evaluates only the first version and the last."""
