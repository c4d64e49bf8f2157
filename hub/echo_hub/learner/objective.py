"""What an update optimises: `[learner]`'s advantage, loss, correction and penalties put together.

Shapes are those of `losses`: flat [N] tokens that were sampled, and `lengths` [R]. docs/learner.md
has the whole as one equation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from echo_hub.config import LearnerSection
from echo_hub.learner import corrections, losses
from echo_hub.learner.advantages import gae, vtrace
from echo_hub.learner.own import own_loss
from echo_hub.learner.penalties import kl
from echo_hub.learner.samples import Part

_SUMS: dict[str, losses.Sum] = {
    "dr_grpo": "dr_grpo",
    "grpo": "answers",
    "gspo": "answers",
    "dapo": "tokens",
    "cispo": "tokens",
    "ppo": "tokens",
}


@dataclass(frozen=True)
class Tokens:
    """The tokens of a micro-batch [N], and how many each rollout has [R].

    `logprobs`, `entropy` and `values` carry gradients. What the objective does not need is None;
    `proximal` may be None where the policy has not moved since the update began.
    """

    logprobs: torch.Tensor
    behaviour: torch.Tensor
    advantages: torch.Tensor
    lags: torch.Tensor
    lengths: torch.Tensor
    entropy: torch.Tensor
    reference: torch.Tensor | None = None
    proximal: torch.Tensor | None = None
    values: torch.Tensor | None = None
    targets: torch.Tensor | None = None
    before: torch.Tensor | None = None


@dataclass(frozen=True)
class Outcome:
    """A micro-batch's share of a step.

    `loss` and `value_loss` are scalars with a gradient. `ratios` [N] are those that the loss clips.
    `sums` are sums over the tokens, of what is reported as a mean.
    """

    loss: torch.Tensor
    value_loss: torch.Tensor | None
    ratios: torch.Tensor
    sums: dict[str, float]


class Objective:
    """One run's objective. `limit` is the most tokens an answer may have."""

    def __init__(self, rules: LearnerSection, *, limit: int) -> None:
        self._rules = rules
        self._limit = limit

    @property
    def needs_reference(self) -> bool:
        """Log-probabilities of the base model?"""
        return self._rules.kl > 0 or self._rules.loss == "dpo"

    @property
    def needs_proximal(self) -> bool:
        """Log-probabilities from before the update: its steps move the policy, or its clip bounds
        depend on them?"""
        rules = self._rules
        weighs = rules.correction != "none" and rules.proximal == "exact"
        return (weighs and rules.steps_per_update > 1) or rules.balanced_clip

    @property
    def needs_values(self) -> bool:
        """A value function?"""
        return self._rules.needs_values

    def __call__(self, tokens: Tokens, part: Part) -> Outcome:
        """Loss of a micro-batch of `part`. Micro-batches' losses add up to the step's."""
        if self._rules.loss == "dpo":
            return self._preference(tokens, len(part.units))
        how = _SUMS[self._rules.loss]
        each, ratios = self._policy_loss(tokens, part.clip or self._rules.clip)
        sums = {"entropy": float(tokens.entropy.detach().sum())}
        if tokens.reference is not None:
            apart = kl(tokens.logprobs, tokens.reference, self._rules.kl_estimator)
            each = each + self._rules.kl * apart
            sums["kl_reference"] = float(apart.detach().sum())
        loss = losses.added_up(
            how,
            each,
            tokens.lengths,
            rollouts=part.rollouts,
            tokens=part.tokens,
            limit=self._limit,
        )
        if self._rules.entropy_bonus:
            loss = loss - self._rules.entropy_bonus * tokens.entropy.sum() / part.tokens
        value_loss = self._value_loss(tokens, part)
        if value_loss is not None:
            sums["value_error"] = float(value_loss.detach()) * part.tokens
        return Outcome(loss, value_loss, ratios.detach(), sums)

    def estimate(
        self,
        rewards: Sequence[float],
        values: Sequence[torch.Tensor],
        ratios: Sequence[torch.Tensor],
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Advantages and value targets of whole rollouts, each [n], from their values [n].

        A rollout's reward falls on its last token. `ratios` are log ratios of the learner's
        probabilities to the node's.
        """
        rules = self._rules
        rows = torch.nn.utils.rnn.pad_sequence(list(values), batch_first=True)
        lengths = torch.tensor([len(one) for one in values])
        mask = torch.arange(rows.shape[1])[None] < lengths[:, None]
        given = torch.zeros_like(rows)
        given[torch.arange(len(values)), lengths - 1] = torch.tensor(rewards)
        if rules.advantage == "vtrace":
            apart = torch.nn.utils.rnn.pad_sequence(list(ratios), batch_first=True)
            targets, found = vtrace(
                given, rows, apart, mask, discount=rules.discount, ceilings=rules.vtrace_ceilings
            )
        else:
            found = gae(given, rows, mask, discount=rules.discount, decay=rules.gae_lambda)
            targets = found + rows
        return (
            [row[here] for row, here in zip(found, mask, strict=True)],
            [row[here] for row, here in zip(targets, mask, strict=True)],
        )

    def _policy_loss(
        self, tokens: Tokens, clip: tuple[float, float]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The loss of each token [N], with its importance weight, and the ratios it was given."""
        rules = self._rules
        if rules.loss_function:
            each = own_loss(rules.loss_function, tokens, len(tokens.logprobs))
            return each, losses.ratio_of(tokens.logprobs, tokens.behaviour)
        anchor, weights = self._correction(tokens)
        logprobs, advantages = tokens.logprobs, tokens.advantages
        if rules.loss == "cispo":
            ratios = losses.ratio_of(logprobs, anchor)
            each = losses.cispo(logprobs, anchor, advantages, ceiling=1.0 + clip[1])
        else:
            if rules.loss == "gspo":
                ratios = losses.sequence_ratio(logprobs, anchor, tokens.lengths)
            else:
                ratios = losses.ratio_of(logprobs, anchor)
            each = losses.clipped(ratios, advantages, clip=clip, ceiling=rules.ratio_ceiling)
        return each if weights is None else each * weights, ratios

    def _correction(self, tokens: Tokens) -> tuple[torch.Tensor, torch.Tensor | None]:
        """What the ratio is taken to [N], and the importance weights [N], if there are any."""
        rules, behaviour = self._rules, tokens.behaviour
        if rules.correction == "none":
            return behaviour, None
        if rules.proximal == "loglinear":
            anchor = corrections.loglinear_proximal(tokens.logprobs, behaviour, tokens.lags)
        else:
            moved = tokens.proximal
            anchor = tokens.logprobs.detach() if moved is None else moved
        weights = corrections.importance(
            anchor, behaviour, tokens.lengths, sequence=rules.correction_level == "sequence"
        )
        bound = corrections.masked if rules.correction == "mis" else corrections.truncated
        return anchor, bound(weights, rules.weight_bounds)

    def _value_loss(self, tokens: Tokens, part: Part) -> torch.Tensor | None:
        if tokens.values is None or tokens.targets is None or tokens.before is None:
            return None
        errors = losses.value_errors(
            tokens.values, tokens.targets, tokens.before, clip=self._rules.value_clip
        )
        return errors.sum() / part.tokens

    def _preference(self, tokens: Tokens, pairs: int) -> Outcome:
        assert tokens.reference is not None
        each = losses.dpo(
            tokens.logprobs, tokens.reference, tokens.lengths, beta=self._rules.dpo_beta
        )
        sums = {"entropy": float(tokens.entropy.detach().sum())}
        return Outcome(each.sum() / pairs, None, torch.ones(0), sums)
