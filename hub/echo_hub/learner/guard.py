"""Whether an update may be applied, decided from what was measured of it. Pure.

Promises: whatever is not finite is refused; what is remembered is of applied updates alone, so a
refused one can be tried against the very same bounds again; the decision is a function of memory,
measures and bounds. Ratios of norms and of rewards decide, so the bounds need no units.

- A gradient norm is a spike if it is far above the median of the last ones, on a log scale, where
  it spreads alike at all sizes; the median absolute deviation is the robust measure of that spread
  (Hampel 1974, "The influence curve and its role in robust estimation").
- A reward has collapsed if the mean of the last few updates fell, from the best few in a row before
  them, by much (in standard deviations of a rollout's reward: Cohen's d) and by more than chance
  explains (in standard errors; prompts are the independent draws, so the error of one update's mean
  is that of its groups' means).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from statistics import fmean, median, pstdev
from typing import Any

import msgspec

from echo_hub.config.guard import GuardSection

_MAD_TO_DEVIATION = 1.4826  # of a normal distribution


class Why(StrEnum):
    """Why an update was refused."""

    NOT_FINITE = "not_finite"
    GRADIENT_SPIKE = "gradient_spike"
    MISMATCH = "mismatch"
    REWARD_COLLAPSE = "reward_collapse"
    CANARY = "canary"
    LEARNER_DIED = "learner_died"
    BAD_BATCH = "bad_batch"
    """The learner could not use it at all: too stale, malformed, or no room for its checkpoint."""


class Reward(msgspec.Struct, frozen=True):
    """Rewards of one update: their mean, its standard error, and a rollout's variance."""

    mean: float
    error: float
    variance: float

    @classmethod
    def of(cls, groups: Sequence[Sequence[float]]) -> Reward:
        """From the rewards of each group."""
        means = [fmean(group) for group in groups]
        error = pstdev(means) / math.sqrt(max(1, len(means) - 1))
        return cls(fmean(means), error, pstdev([r for group in groups for r in group]) ** 2)


class Measures(msgspec.Struct, frozen=True):
    """An update that was computed and not yet applied.

    `grad_norm` is raw, before clipping; 0 if no rollout has an advantage. `mismatch_kl` is of the
    tokens that the learner's own version sampled, None if there are none; `policy_kl` is of all;
    both in nats a token.
    """

    loss: float
    grad_norm: float
    policy_kl: float
    mismatch_kl: float | None
    reward: Reward


class Memory(msgspec.Struct, frozen=True):
    """What is remembered of applied updates, the newest last: `norms` that were above 0, and
    (version they led to, its rewards)."""

    norms: tuple[float, ...] = ()
    rewards: tuple[tuple[int, Reward], ...] = ()

    def after(self, version: int, measures: Measures, bounds: GuardSection) -> Memory:
        """With the update to `version`, which was applied."""
        norms = (*self.norms, measures.grad_norm) if measures.grad_norm > 0 else self.norms
        rewards = (*self.rewards, (version, measures.reward))
        return Memory(norms[-bounds.gradient_window :], rewards[-bounds.reward_memory :])

    def to_json(self) -> Any:
        """As plain values."""
        return msgspec.json.decode(msgspec.json.encode(self))

    @classmethod
    def from_json(cls, values: Any) -> Memory:
        """From what `to_json` gave."""
        return msgspec.convert(values, cls)


class Refusal(msgspec.Struct, frozen=True):
    """An update must not be applied. `back_to`: the newest version known to be good, if it is not
    the one that the update started from."""

    why: Why
    sentence: str
    back_to: int | None = None


def judge(memory: Memory, measures: Measures, bounds: GuardSection) -> Refusal | None:
    """Why an update must not be applied; None if it may."""
    return (
        _not_finite(measures)
        or _mismatch(measures, bounds)
        or _spike(memory.norms, measures.grad_norm, bounds)
        or _collapse(memory, measures.reward, bounds)
    )


def good_version(memory: Memory, bounds: GuardSection) -> int | None:
    """The newest version that the best rewards remembered speak for; None if there are too few.

    An update's rollouts come from versions before the one it leads to, so what a stretch of updates
    speaks for is the version before its last.
    """
    best = _best_window(memory.rewards, bounds.reward_window)
    return None if best is None else max(0, best[-1][0] - 1)


def _not_finite(measures: Measures) -> Refusal | None:
    reward = measures.reward
    named = {
        "loss": measures.loss,
        "gradient norm": measures.grad_norm,
        "KL to the nodes' policy": measures.policy_kl,
        "mismatch KL": measures.mismatch_kl or 0.0,
        "mean reward": reward.mean + reward.error + reward.variance,
    }
    for name, value in named.items():
        if not math.isfinite(value):
            return Refusal(Why.NOT_FINITE, f"its {name} is {value}.")
    return None


def _mismatch(measures: Measures, bounds: GuardSection) -> Refusal | None:
    if measures.mismatch_kl is not None and measures.mismatch_kl > bounds.mismatch_kl:
        return Refusal(
            Why.MISMATCH,
            f"its nodes and the learner differ by a KL of {measures.mismatch_kl:.3g} nats a token "
            f"on the same version; guard.mismatch_kl is {bounds.mismatch_kl:g}.",
        )
    if measures.policy_kl > bounds.policy_kl:
        return Refusal(
            Why.MISMATCH,
            f"the KL from its nodes' policies to the learner's is {measures.policy_kl:.3g} nats a "
            f"token; guard.policy_kl is {bounds.policy_kl:g}.",
        )
    return None


def _spike(norms: Sequence[float], norm: float, bounds: GuardSection) -> Refusal | None:
    if len(norms) < bounds.gradient_warmup or norm <= 0:
        return None
    logs = [math.log(one) for one in norms]
    centre = median(logs)
    deviation = _MAD_TO_DEVIATION * median(abs(one - centre) for one in logs)
    rise = math.log(norm) - centre
    if rise <= math.log(bounds.gradient_factor) or rise <= bounds.gradient_deviations * deviation:
        return None
    return Refusal(
        Why.GRADIENT_SPIKE,
        f"its gradient norm {norm:.3g} is {math.exp(rise):.1f} times the median of the last "
        f"{len(norms)} updates.",
    )


def _collapse(memory: Memory, reward: Reward, bounds: GuardSection) -> Refusal | None:
    width = bounds.reward_window
    if len(memory.rewards) < width - 1:
        return None
    start = len(memory.rewards) - (width - 1)
    before, recent = memory.rewards[:start], memory.rewards[start:]
    best = _best_window(before, width)
    if best is None:
        return None
    mean, error, variance = _pooled([one for _, one in best])
    now, now_error, now_variance = _pooled([*(one for _, one in recent), reward])
    fall = mean - now
    # a window of equal rewards has no spread of its own, so the two share one
    if fall <= bounds.reward_drop * math.sqrt((variance + now_variance) / 2):
        return None
    if fall <= bounds.reward_confidence * math.hypot(error, now_error):
        return None
    return Refusal(
        Why.REWARD_COLLAPSE,
        f"the mean reward of {width} updates fell to {now:.3g} from {mean:.3g} of the updates to "
        f"versions {best[0][0]} to {best[-1][0]}.",
        back_to=max(0, best[-1][0] - 1),
    )


def _best_window(
    rewards: Sequence[tuple[int, Reward]], width: int
) -> Sequence[tuple[int, Reward]] | None:
    """The `width` updates in a row with the best mean, the newest of several."""
    windows = [rewards[i : i + width] for i in range(len(rewards) - width + 1)]
    if not windows:
        return None
    return max(reversed(windows), key=lambda window: sum(one.mean for _, one in window))


def _pooled(rewards: Sequence[Reward]) -> tuple[float, float, float]:
    """Mean, standard error and a rollout's variance over several updates of one size."""
    error = math.sqrt(sum(one.error**2 for one in rewards)) / len(rewards)
    return fmean(r.mean for r in rewards), error, fmean(r.variance for r in rewards)
