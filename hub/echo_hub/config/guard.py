"""`[guard]`: what stops an update before it is applied, and a version before it is published."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from echo_hub.config.fields import Positive
from echo_p2p.toml import Strict, wrong


class GuardSection(Strict):
    gradient_factor: Annotated[float, Field(ge=1)] = 30.0
    """A gradient norm (before it is clipped) is a spike if it is more than so many times the median
    of the last applied updates, and by more than `gradient_deviations` as well."""
    gradient_deviations: Annotated[float, Field(gt=0)] = 5.0
    """How far a spike is above that median at least, in robust standard deviations (1.48 times the
    median absolute deviation) of the norms' logarithms."""
    gradient_window: Annotated[int, Field(ge=4, le=1024)] = 32
    """Applied updates whose norms are remembered."""
    gradient_warmup: Annotated[int, Field(ge=4, le=1024)] = 8
    """Norms that are remembered before one can be a spike."""
    mismatch_kl: Annotated[float, Field(gt=0)] = 0.1
    """KL(node || learner), in nats a token, of tokens that were sampled by the very version that
    the learner is at: only numerics or lies keep it from 0. More refuses the update."""
    policy_kl: Annotated[float, Field(gt=0)] = 2.0
    """The same of all tokens of an update, those of older versions too. More refuses the update."""
    reward_window: Annotated[int, Field(ge=2, le=64)] = 4
    """Updates whose mean reward is compared with the best so many updates in a row before them."""
    reward_memory: Annotated[int, Field(ge=4, le=4096)] = 64
    """Applied updates among which the best ones are looked for."""
    reward_drop: Annotated[float, Field(gt=0)] = 1.0
    """A reward has collapsed if its mean fell by so many standard deviations of a rollout's reward,
    and by more than chance explains (`reward_confidence`)."""
    reward_confidence: Annotated[float, Field(gt=0)] = 6.0
    """How far that fall is beyond chance at least, in standard errors of the two means."""
    canary_prompts: Annotated[int, Field(ge=1, le=64)] = 4
    """Prompts of the task that each new version answers, read afresh from its files, before it
    counts."""
    canary_difference: Annotated[float, Field(ge=0)] = 0.0
    """Most that a log-probability of those answers may differ from the policy that was trained, in
    nats; 0 chooses 0.01 for a float32 base and 0.5 for a bfloat16 one."""
    refusals: Positive = 3
    """Updates refused in a row, deaths of the learner on one batch, or returns to the same version,
    after which the run is paused."""

    @model_validator(mode="after")
    def _remembers_enough(self) -> GuardSection:
        if self.gradient_warmup > self.gradient_window:
            raise wrong(
                "gradient_warmup",
                f"no more than gradient_window, {self.gradient_window}, are remembered, so nothing "
                "could ever be a spike; lower it",
            )
        if self.reward_memory < 2 * self.reward_window - 1:
            raise wrong(
                "reward_memory",
                "too few for a stretch of reward_window before the newest one, so no collapse "
                f"could ever be seen; raise it to {2 * self.reward_window - 1}",
            )
        return self
