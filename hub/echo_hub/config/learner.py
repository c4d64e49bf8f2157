"""`[learner]`: the update, the adapter, and what the learner runs on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, model_validator

from echo_hub.config.adapter import AdapterFields
from echo_hub.config.fields import Fraction, Positive
from echo_p2p.toml import wrong

_AboveZero = Annotated[float, Field(gt=0)]
_Decay = Annotated[float, Field(ge=0, lt=1)]


class LearnerSection(AdapterFields):
    groups_per_update: Positive = 32
    """B: groups in one update (R = B * G rollouts)."""
    staleness: Annotated[int, Field(ge=0, le=100)] = 2
    """S: no rollout with a greater lag enters an update, in versions. Ignored when sequential."""
    learning_rate: Annotated[float, Field(gt=0, lt=1)] = 1e-3
    """AdamW step size."""
    rate_coupling: Annotated[float, Field(ge=0, le=100)] = 0.5
    """c: the step size is learning_rate / (1 + c * lag), with the mean lag of an update's tokens; 0
    keeps it the same at every lag."""
    rate_by_ess: bool = False
    """Multiply the step size by the root of the effective sample size as well."""
    warmup_updates: Annotated[int, Field(ge=0)] = 0
    """Updates over which the step size rises to its full length."""
    alignment_limit: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Greatest cosine of a gradient with the one before it; what is above is taken off. 1 is no
    bound."""
    betas: tuple[_Decay, _Decay] = (0.9, 0.99)
    """AdamW moment decays."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """AdamW decoupled weight decay."""
    clip: tuple[Annotated[float, Field(gt=0, lt=1)], Annotated[float, Field(gt=0)]] = (0.4, 0.2)
    """Ratio clip below and above 1. (`cispo` uses the upper one; `gspo` wants both near 3e-4.) With
    PPO's 0.2 below stale rollouts learn less: docs/performance.md, "Staleness"."""
    balanced_clip: bool = False
    """Choose both clip bounds anew for each update (BAPO); `clip` counts for nothing then. Costs a
    forward pass."""
    ratio_ceiling: Annotated[float, Field(ge=0)] = 4.0
    """Greatest ratio that pushes a token down, of any loss that clips; 0 is no ceiling."""
    advantage: Literal["dr_grpo", "grpo", "rloo", "gae", "vtrace"] = "dr_grpo"
    """How much better than expected: within the group (the first three), or by a value function."""
    loss: Literal["dr_grpo", "grpo", "dapo", "gspo", "cispo", "ppo", "dpo"] = "dr_grpo"
    """What is minimised; docs/learner.md has the equations."""
    advantage_function: str = ""
    """Your own in the place of `advantage`: `file:my_algorithm.py:name` or
    `module:package.module:name`, a function of rewards [groups, G] that gives advantages
    [groups, G]. It runs in the learner's process. Empty: `advantage`."""
    loss_function: str = ""
    """Your own loss, named likewise: a function of a micro-batch's `Tokens` that gives the loss of
    each token [N]; they are added up as `loss` says. Empty: `loss`."""
    correction: Literal["none", "tis", "mis", "decoupled"] = "none"
    """Importance weights of what an older version sampled: none (the ratio is to the node's
    log-probabilities), truncated, masked, or those of decoupled PPO."""
    correction_level: Literal["token", "sequence"] = "token"
    """Does each token have a weight of its own, or each answer one for all its tokens?"""
    weight_bounds: tuple[Annotated[float, Field(ge=0)], Annotated[float, Field(gt=0)]] = (0.0, 2.0)
    """Importance weights are held within these (`mis`: count nothing outside them)."""
    proximal: Literal["exact", "loglinear"] = "exact"
    """Of `decoupled`: proximal log-probabilities from the weights an update starts from, or
    interpolated between the node's and the learner's."""
    steps_per_update: Positive = 1
    """Optimiser steps in one update, each on its share of the groups."""
    kl: Annotated[float, Field(ge=0)] = 0.0
    """Weight of the KL divergence from the base model, a token; 0 computes none."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """How that divergence is estimated."""
    entropy_bonus: Annotated[float, Field(ge=0)] = 0.0
    """Weight of the policy's entropy, mean over tokens, which is taken off the loss."""
    overlong_tokens: Annotated[int, Field(ge=0)] = 0
    """Length, in tokens before the limit, over which an answer's reward falls by 1; 0 is none."""
    drop_zero_advantage: bool = False
    """Fill each update with groups whose rewards differ; the others count as consumed."""
    most_dropped: Positive = 8
    """Of those, at most so many updates' worth are left out of one update, so that a task that is
    solved does not stop the run."""
    dpo_beta: Annotated[float, Field(gt=0)] = 0.1
    """Of `dpo`: how closely the policy is held to the base model."""
    discount: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Of a value function: what a reward one token later is worth."""
    gae_lambda: Fraction = 0.95
    """Of `gae`: 1 looks to the end of the answer, 0 one token ahead."""
    vtrace_ceilings: tuple[_AboveZero, _AboveZero] = (1.0, 1.0)
    """Of `vtrace`: the greatest ratio rho of a token's own error, and c of those after it."""
    value_learning_rate: Annotated[float, Field(gt=0, lt=1)] = 1e-2
    """AdamW step size of the value head."""
    value_clip: Annotated[float, Field(ge=0)] = 0.0
    """How far a value may move in an update before it gets no gradient; 0 is any distance."""
    max_grad_norm: Annotated[float, Field(gt=0)] = 1.0
    """Gradient norm is clipped to this."""
    microbatch_tokens: Positive = 8192
    """Padded tokens in one forward and backward pass."""
    device: str = "cpu"
    """torch device of the learner."""
    devices: Annotated[int, Field(ge=1, le=64)] = 1
    """Processes that share one update, each on a device of its own (cuda:0, cuda:1, ...)."""
    sharding: Literal["auto", "replicate", "shard"] = "auto"
    """With several devices: the base whole on each, or in pieces on all (FSDP2). `auto` shards if a
    whole one would not fit."""
    threads: Annotated[int, Field(ge=0)] = 0
    """CPU threads of the learner; 0 leaves torch's default."""
    keep_checkpoints: Annotated[int, Field(ge=2)] = 4
    """Checkpoints kept on disk beside the published versions."""

    @property
    def needs_values(self) -> bool:
        """Is there a value head?"""
        return self.advantage in ("gae", "vtrace")

    @model_validator(mode="after")
    def _makes_sense(self) -> LearnerSection:
        for field, message in (*_own(self), *_contradictions(self)):
            raise wrong(field, message)
        return self


_PLACE = re.compile(r"(file|module):.+:[A-Za-z_][A-Za-z0-9_]*")


def _own(one: LearnerSection) -> Iterator[tuple[str, str]]:
    """What is wrong about the operator's own functions."""
    for field in ("advantage_function", "loss_function"):
        place = getattr(one, field)
        if place and not _PLACE.fullmatch(place):
            yield field, "write it like file:my_algorithm.py:name, or module:package.module:name"
    if one.advantage_function and (one.needs_values or one.loss == "dpo"):
        yield "advantage_function", f'loss "{one.loss}" has no use for it; set loss "dr_grpo"'
    if one.loss_function and one.loss in ("ppo", "dpo"):
        yield "loss_function", f'loss "{one.loss}" is a whole of its own; set loss "dr_grpo"'
    if one.loss_function and one.correction != "none":
        yield "loss_function", 'it weighs its tokens itself; set correction "none"'


def _contradictions(one: LearnerSection) -> Iterator[tuple[str, str]]:
    """The settings of the objective that do not go together: which, and what to do about it."""
    if one.loss == "ppo" and not one.needs_values:
        yield "advantage", f'"{one.advantage}" has no value function for loss "ppo"; set "gae"'
    if one.needs_values and one.loss != "ppo":
        yield "loss", f'advantage "{one.advantage}" is for loss "ppo"; set that, or "dr_grpo"'
    if one.needs_values and one.drop_zero_advantage:
        yield (
            "drop_zero_advantage",
            f'with advantage "{one.advantage}" every group has a gradient; set it to false',
        )
    if one.adapter == "none" and (one.loss == "dpo" or one.kl > 0):
        yield "adapter", 'without one no base is kept to compare with; set "lora", or another loss'
    if one.balanced_clip and one.correction != "none":
        yield "balanced_clip", 'it balances ratios to the node\'s; set correction "none"'
    if one.balanced_clip and one.loss in ("gspo", "cispo", "dpo"):
        yield "balanced_clip", f'loss "{one.loss}" does not clip tokens; leave it out'
    if one.loss == "dpo":
        for field, nothing in (("correction", "none"), ("kl", 0.0), ("entropy_bonus", 0.0)):
            if getattr(one, field) != nothing:
                yield field, 'loss "dpo" has no use for it (see dpo_beta); leave it out'
    if one.correction == "none":
        if one.correction_level != "token":
            yield "correction_level", 'correction "none" has no weights; choose "tis" or "mis"'
    elif one.advantage == "vtrace" and one.correction != "tis":
        yield "correction", 'advantage "vtrace" truncates its weights; set "tis" or "none"'
    if one.proximal != "exact" and one.correction != "decoupled":
        yield "proximal", 'only correction "decoupled" interpolates; set that, or "exact"'
    if one.weight_bounds[0] >= one.weight_bounds[1]:
        yield "weight_bounds", "the lower bound is not below the upper one; exchange them"
    least = 1.0 + one.clip[1]
    if 0 < one.ratio_ceiling <= least:
        yield "ratio_ceiling", f"it is not above 1 + clip = {least:g}; raise it, or set 0"
    if one.steps_per_update > one.groups_per_update:
        yield "steps_per_update", "a step needs a group; set at most learner.groups_per_update"
