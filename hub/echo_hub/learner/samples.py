"""Groups to samples: which tokens of an update have a gradient, and what they weigh. Pure.

Promises: a group of lag over S, or from the future, is refused; so is anything not finite. What an
environment wrote (`observed`) is context and nothing else: no loss, no token count, and the numbers
that stand where its log-probabilities would be are never read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from echo_hub.config import LearnerSection
from echo_hub.learner import advantages
from echo_hub.learner.measures import lag_metrics
from echo_hub.learner.messages import TrainGroup, TrainRollout
from echo_hub.learner.own import own_advantages
from echo_hub.learner.penalties import shaped
from echo_p2p.errors import LearnerError

_OF_GROUPS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "dr_grpo": advantages.dr_grpo,
    "grpo": advantages.grpo,
    "rloo": advantages.rloo,
}


@dataclass(frozen=True)
class Sample:
    """One rollout as the loss sees it.

    `sampled` are the positions in `answer` that the policy drew, `behaviour` the log-probabilities
    there; `reward` has its length penalty; `advantage` is 0 where a value function will say.
    """

    prompt: list[int]
    answer: list[int]
    sampled: list[int]
    behaviour: list[float]
    reward: float
    advantage: float
    lag: int
    group: int

    @property
    def length(self) -> int:
        """Tokens of prompt and answer."""
        return len(self.prompt) + len(self.answer)


@dataclass(frozen=True)
class Part:
    """What one optimiser step is made on.

    `units` are the samples that belong together in a micro-batch: one each, or the better and the
    worse of a pair. `rollouts` and `tokens` count all of the step's, without an advantage too.
    `clip`: how far its ratios may leave 1, below and above, if that is not the run's `clip`.
    """

    units: list[list[Sample]]
    rollouts: int
    tokens: int
    clip: tuple[float, float] | None = None


@dataclass(frozen=True)
class Batch:
    """An update: its parts in order, and what there is to say of all its rollouts."""

    parts: list[Part]
    metrics: dict[str, float]

    @property
    def samples(self) -> list[Sample]:
        """All that have a gradient."""
        return [sample for part in self.parts for unit in part.units for sample in unit]


def make_batch(
    groups: Sequence[TrainGroup], rules: LearnerSection, *, version: int, staleness: int, limit: int
) -> Batch:
    """The update from `version` on these groups; LearnerError if it must not be made.

    Args:
        staleness: S, the greatest lag that is let in.
        limit: most tokens an answer may have.
    """
    lags = _checked_lags(groups, version, staleness)
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    sampled = [_sampled(rollout) for rollout in rollouts]
    size = len(groups[0].rollouts)
    rewards = torch.tensor([rollout.reward for rollout in rollouts]).view(-1, size)
    if not torch.isfinite(rewards).all():
        raise LearnerError("a reward is not finite.")
    lengths = [len(positions) for positions in sampled]
    worth = rewards
    if rules.overlong_tokens:
        told = rewards.flatten().tolist()
        given = shaped(told, lengths, limit=limit, tolerance=rules.overlong_tokens)
        worth = torch.tensor(given).view(-1, size)
    if rules.advantage_function:
        found = own_advantages(rules.advantage_function, worth)
    else:
        found = _OF_GROUPS.get(rules.advantage, torch.zeros_like)(worth)
    samples = [
        Sample(
            prompt=groups[i // size].prompt,
            answer=rollout.tokens,
            sampled=sampled[i],
            behaviour=[rollout.logprobs[position] for position in sampled[i]],
            reward=float(worth.flatten()[i]),
            advantage=float(found.flatten()[i]),
            lag=lags[i // size],
            group=i // size,
        )
        for i, rollout in enumerate(rollouts)
    ]
    alike = worth.amax(-1) == worth.amin(-1)
    return Batch(
        _parts(samples, rules, groups=len(groups)),
        {
            "reward_mean": float(rewards.mean()),
            "reward_std": float(rewards.std(correction=0)),
            "zero_advantage_groups": float(alike.sum()),
            "tokens": float(sum(lengths)),
            **lag_metrics(lags),
        },
    )


def _checked_lags(groups: Sequence[TrainGroup], version: int, staleness: int) -> list[int]:
    lags = [version - group.version for group in groups]
    if not groups or len({len(group.rollouts) for group in groups}) != 1:
        raise LearnerError("an update needs groups, all with the same number of rollouts.")
    if min(lags) < 0 or max(lags) > staleness:
        raise LearnerError(
            f"version {version} was given groups of lag {min(lags)} to {max(lags)}, "
            f"where 0 to {staleness} may be trained on."
        )
    return lags


def _sampled(rollout: TrainRollout) -> list[int]:
    """The positions of an answer that the policy drew."""
    count = len(rollout.tokens)
    if not 0 < count == len(rollout.logprobs):
        raise LearnerError("a rollout is empty, or has not one log-probability for each token.")
    positions: list[int] = []
    at = 0
    for start, end in rollout.observed:
        if not at <= start < end <= count:
            raise LearnerError(f"a rollout of {count} tokens has no span {start} to {end}.")
        positions += range(at, start)
        at = end
    positions += range(at, count)
    if not positions:
        raise LearnerError("a rollout has no token that the policy sampled.")
    return positions


def _parts(samples: list[Sample], rules: LearnerSection, *, groups: int) -> list[Part]:
    parts = []
    for step in range(min(rules.steps_per_update, groups)):
        own = [sample for sample in samples if sample.group % rules.steps_per_update == step]
        units = _pairs(own) if rules.loss == "dpo" else [[s] for s in own if _counts(s, rules)]
        parts.append(Part(units, len(own), sum(len(sample.sampled) for sample in own)))
    return parts


def _counts(sample: Sample, rules: LearnerSection) -> bool:
    """Without an advantage a rollout would add exactly nothing to the policy's own loss."""
    regularised = rules.kl > 0 or rules.entropy_bonus > 0
    return sample.advantage != 0.0 or rules.needs_values or regularised


def _pairs(samples: list[Sample]) -> list[list[Sample]]:
    """The best and the worst of each group, by reward; none of a group whose rewards are alike."""
    pairs = []
    for number in sorted({sample.group for sample in samples}):
        group = [sample for sample in samples if sample.group == number]
        best = max(group, key=lambda sample: sample.reward)
        worst = min(group, key=lambda sample: sample.reward)
        if best.reward > worst.reward:
            pairs.append([best, worst])
    return pairs
