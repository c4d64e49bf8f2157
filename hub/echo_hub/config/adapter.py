"""What is trained of the base model: part of `[learner]`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from echo_hub.config.fields import Positive
from echo_p2p.toml import Strict

LINEAR_LAYERS = (
    "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
)  # fmt: skip
MAX_RANK = 512
"""The largest `max_lora_rank` that vLLM has."""


class AdapterFields(Strict):
    adapter: Literal["lora", "none"] = "lora"
    """`lora` trains an adapter of low rank; `none` trains every weight of a small model, which then
    is what each version sends."""
    rank: Annotated[int, Field(ge=1, le=MAX_RANK)] = 16
    """LoRA rank r; 512, the most that vLLM takes, at most."""
    alpha: Positive = 32
    """LoRA alpha; the update is scaled by alpha / r."""
    rslora: bool = False
    """Scale the update by alpha / sqrt(r) instead (rsLoRA), for high ranks."""
    target_modules: tuple[str, ...] | str = LINEAR_LAYERS
    """Linear layers that get an adapter: ends of their names; or "all-linear", all but the output
    layer; or a regular expression that whole names match."""
    dropout: float = 0.0
    """LoRA dropout: 0, and nothing else."""
    dora: bool = False
    """DoRA: false, and nothing else."""
    gradient_checkpointing: bool = False
    """Compute each layer again for the backward pass instead of keeping what it computed: less
    memory for about a third more time."""

    @field_validator("dropout")
    @classmethod
    def _no_dropout(cls, value: float) -> float:
        if value != 0.0:
            raise ValueError(
                "an adapter that drops out is not the policy that the nodes sample from, and every "
                "importance ratio would be noise: leave it at 0"
            )
        return value

    @field_validator("dora")
    @classmethod
    def _no_dora(cls, value: bool) -> bool:
        if value:
            raise ValueError(
                "vLLM does not yet support DoRA (its loader refuses such adapters), so volunteers "
                "could not serve it: leave it false, and raise learner.rank instead"
            )
        return value

    @field_validator("target_modules")
    @classmethod
    def _some_target(cls, value: tuple[str, ...] | str) -> tuple[str, ...] | str:
        if not value or not all(value):
            raise ValueError("name at least one kind of layer")
        return value
