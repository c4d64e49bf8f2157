"""`[learner]`: the update, the adapter, and what the learner runs on."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from echo_hub.config.adapter import AdapterFields
from echo_hub.config.fields import Fraction, Positive


class LearnerSection(AdapterFields):
    groups_per_update: Positive = 32
    """B: groups in one update (R = B * G rollouts)."""
    staleness: Annotated[int, Field(ge=0, le=100)] = 2
    """S: no rollout with a greater lag enters an update, in versions. Ignored when sequential."""
    learning_rate: Annotated[float, Field(gt=0, lt=1)] = 1e-3
    """AdamW step size."""
    betas: tuple[Fraction, Fraction] = (0.9, 0.99)
    """AdamW moment decays."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """AdamW decoupled weight decay."""
    clip: tuple[Annotated[float, Field(gt=0, lt=1)], Annotated[float, Field(gt=0)]] = (0.2, 0.2)
    """Ratio clip below and above 1."""
    max_grad_norm: Annotated[float, Field(gt=0)] = 1.0
    """Gradient norm is clipped to this."""
    microbatch_tokens: Positive = 8192
    """Padded tokens in one forward and backward pass."""
    device: str = "cpu"
    """torch device of the learner."""
    threads: Annotated[int, Field(ge=0)] = 0
    """CPU threads of the learner; 0 leaves torch's default."""
    keep_checkpoints: Annotated[int, Field(ge=2)] = 4
    """Checkpoints kept on disk beside the published versions."""
