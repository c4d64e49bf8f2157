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
  is that of its groups' means). Where prompts are of several arms (tasks, or buckets of one), each
  is compared with itself, so that asking for harder ones is no fall.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from statistics import fmean, median, pstdev
from typing import Any

import msgspec

from echo_hub.config.guard import GuardSection

_MAD_TO_DEVIATION = 1.4826  # of a normal distribution
_LEAST_SHARED, _SHARED = 2, 1 / 8
_LEAST_FREEDOM = 8  # degrees, to tell a variance from


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
    """Rewards of one update: their mean, its standard error, and a rollout's variance. `arms`: each
    group's arm and mean."""

    mean: float
    error: float
    variance: float
    arms: tuple[tuple[int, float], ...] = ()

    @classmethod
    def of(cls, groups: Sequence[Sequence[float]], arms: Sequence[int] = ()) -> Reward:
        """From the rewards of each group; `arms` says which each is of, if there are several."""
        means = [fmean(group) for group in groups]
        error = pstdev(means) / math.sqrt(max(1, len(means) - 1))
        variance = pstdev([r for group in groups for r in group]) ** 2
        by_arm = tuple(zip(arms, means, strict=True)) if arms else ()
        return cls(fmean(means), error, variance, by_arm)


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
    before = memory.rewards[:start]
    now = [*(one for _, one in memory.rewards[start:]), reward]
    worst: tuple[float, Sequence[tuple[int, Reward]]] | None = None
    for window in reversed(_windows(before, width)):
        fall = _fall([one for _, one in window], now, bounds)
        if fall is not None and (worst is None or fall > worst[0]):
            worst = fall, window
    if worst is None:
        return None
    fall, window = worst
    return Refusal(
        Why.REWARD_COLLAPSE,
        f"the mean reward of {width} updates fell by {fall:.3g}, to "
        f"{fmean(one.mean for one in now):.3g}, from that of the updates to versions "
        f"{window[0][0]} to {window[-1][0]}.",
        back_to=max(0, window[-1][0] - 1),
    )


def _fall(before: Sequence[Reward], now: Sequence[Reward], bounds: GuardSection) -> float | None:
    """How far the mean reward fell from one window to another; None if not by much, or not for
    certain."""
    mean, error, variance = _pooled(before)
    mean_now, error_now, variance_now = _pooled(now)
    fall, error = mean - mean_now, math.hypot(error, error_now)
    if any(arm for one in (*before, *now) for arm, _ in one.arms):
        by_arms = _fall_by_arms(_by_arm(before), _by_arm(now))
        if by_arms is None:
            return None
        fall, error = by_arms
    # a window of equal rewards has no spread of its own, so the two share one
    deviation = math.sqrt((variance + variance_now) / 2)
    large = fall > bounds.reward_drop * deviation and fall > bounds.reward_confidence * error
    return fall if large else None


def _fall_by_arms(
    before: Mapping[int, Sequence[float]], now: Mapping[int, Sequence[float]]
) -> tuple[float, float] | None:
    """The fall within arms that both windows have, and its standard error; None if they share too
    little: under an eighth of what windows of the same arms would, or two groups' worth.

    Each arm weighs as much as it can say: by n m / (n + m) for its n groups before and m now (as in
    Mantel and Haenszel 1959). All arms share one variance of a group's mean; where they have too
    few groups to tell it, that about the mean of all takes its place, which is larger.
    """
    shared = before.keys() & now.keys()
    weights = {a: len(before[a]) * len(now[a]) / (len(before[a]) + len(now[a])) for a in shared}
    total = sum(weights.values())
    many, many_now = sum(map(len, before.values())), sum(map(len, now.values()))
    alike = many * many_now / max(1, many + many_now)
    if total < max(_LEAST_SHARED, alike * _SHARED):
        return None
    fall = sum(w * (fmean(before[a]) - fmean(now[a])) for a, w in weights.items()) / total
    cells = [window[arm] for window in (before, now) for arm in shared]
    freedom = sum(len(cell) - 1 for cell in cells)
    if freedom >= _LEAST_FREEDOM:
        variance = sum(len(cell) * pstdev(cell) ** 2 for cell in cells) / freedom
    else:
        variance = pstdev([mean for cell in cells for mean in cell]) ** 2
    return fall, math.sqrt(variance / total)


def _by_arm(rewards: Sequence[Reward]) -> dict[int, list[float]]:
    """Means of groups, by their arm."""
    found: dict[int, list[float]] = {}
    for reward in rewards:
        for arm, mean in reward.arms:
            found.setdefault(arm, []).append(mean)
    return found


def _windows(
    rewards: Sequence[tuple[int, Reward]], width: int
) -> list[Sequence[tuple[int, Reward]]]:
    return [rewards[i : i + width] for i in range(len(rewards) - width + 1)]


def _best_window(
    rewards: Sequence[tuple[int, Reward]], width: int
) -> Sequence[tuple[int, Reward]] | None:
    """The `width` updates in a row with the best mean, the newest of several."""
    windows = _windows(rewards, width)
    if not windows:
        return None
    return max(reversed(windows), key=lambda window: sum(one.mean for _, one in window))


def _pooled(rewards: Sequence[Reward]) -> tuple[float, float, float]:
    """Mean, standard error and a rollout's variance over several updates of one size."""
    error = math.sqrt(sum(one.error**2 for one in rewards)) / len(rewards)
    return fmean(r.mean for r in rewards), error, fmean(r.variance for r in rewards)
