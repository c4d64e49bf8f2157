"""The guard: what it refuses, what it never refuses, and how rarely it is wrong."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from statistics import median

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo_hub.config.guard import GuardSection
from echo_hub.learner.guard import Measures, Memory, Refusal, Reward, Why, good_version, judge

BOUNDS = GuardSection()
GOOD = Measures(
    loss=0.01,
    grad_norm=0.1,
    policy_kl=0.01,
    mismatch_kl=1e-6,
    reward=Reward(mean=0.9, error=0.03, variance=0.09),
)


def measured(**changes: object) -> Measures:
    return msgspec.structs.replace(GOOD, **changes)


def remembering(many: list[Measures]) -> Memory:
    memory = Memory()
    for version, measures in enumerate(many, 1):
        memory = memory.after(version, measures, BOUNDS)
    return memory


STEADY = remembering([GOOD] * 20)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("field", ["loss", "grad_norm", "policy_kl", "mismatch_kl", "reward"])
def test_what_is_not_finite_is_refused(field: str, bad: float) -> None:
    value = Reward(bad, 0.0, 0.0) if field == "reward" else bad
    for memory in (Memory(), STEADY):
        refusal = judge(memory, measured(**{field: value}), BOUNDS)
        assert refusal is not None
        assert refusal.why is Why.NOT_FINITE


def test_an_update_like_the_others_is_applied() -> None:
    assert judge(Memory(), GOOD, BOUNDS) is None
    assert judge(STEADY, GOOD, BOUNDS) is None
    assert judge(STEADY, measured(mismatch_kl=None), BOUNDS) is None
    assert judge(STEADY, measured(grad_norm=0.0), BOUNDS) is None  # nobody has an advantage


@pytest.mark.parametrize(
    ("field", "bound"), [("mismatch_kl", BOUNDS.mismatch_kl), ("policy_kl", BOUNDS.policy_kl)]
)
def test_nodes_that_are_far_from_the_learner(field: str, bound: float) -> None:
    assert judge(STEADY, measured(**{field: bound}), BOUNDS) is None
    refusal = judge(STEADY, measured(**{field: bound * 1.01}), BOUNDS)
    assert refusal is not None
    assert refusal.why is Why.MISMATCH
    assert f"guard.{field}" in refusal.sentence


def test_a_spike_is_one_only_after_the_warm_up() -> None:
    spike = measured(grad_norm=3.01)
    for applied in range(20):
        refusal = judge(remembering([GOOD] * applied), spike, BOUNDS)
        assert (refusal is not None) == (applied >= BOUNDS.gradient_warmup)
        if refusal is not None:
            assert refusal.why is Why.GRADIENT_SPIKE
    assert judge(STEADY, measured(grad_norm=2.99), BOUNDS) is None  # 30 times the median


def test_where_norms_spread_much_a_spike_must_be_larger() -> None:
    rng = random.Random(1)
    wide = remembering([measured(grad_norm=0.1 * math.exp(rng.gauss(0, 1))) for _ in range(32)])
    assert judge(wide, measured(grad_norm=3.0), BOUNDS) is None
    refusal = judge(wide, measured(grad_norm=1e4), BOUNDS)
    assert refusal is not None


def test_one_spike_in_the_memory_hides_no_other() -> None:
    """The median, unlike a mean, does not follow what an operator let pass."""
    memory = remembering([GOOD] * 10 + [measured(grad_norm=1e6)] * 3 + [GOOD] * 5)
    assert judge(memory, measured(grad_norm=1e5), BOUNDS) is not None


def rewards(probability: float, rng: random.Random, groups: int = 16, size: int = 8) -> Reward:
    """Binary rewards of an update whose prompts differ in difficulty."""
    drawn = []
    for _ in range(groups):
        hard = min(1.0, max(0.0, rng.gauss(probability, 0.2)))
        drawn.append([float(rng.random() < hard) for _ in range(size)])
    return Reward.of(drawn)


def test_a_collapse_is_refused_and_says_where_to_go_back_to() -> None:
    rng = random.Random(2)
    memory, version, refusal = Memory(), 0, None
    for probability in [0.3, 0.5, 0.7, 0.9, 0.9, 0.9, 0.9, *[0.05] * 8]:
        measures = measured(reward=rewards(probability, rng))
        refusal = judge(memory, measures, BOUNDS)
        if refusal is not None:
            break
        version += 1
        memory = memory.after(version, measures, BOUNDS)
    assert refusal is not None
    assert refusal.why is Why.REWARD_COLLAPSE
    # it takes a full window of bad updates or nearly, and not more
    assert 7 + BOUNDS.reward_window - 2 <= version <= 7 + BOUNDS.reward_window
    assert refusal.back_to is not None
    assert 3 <= refusal.back_to <= 6  # versions whose rollouts had a reward of about 0.9
    assert good_version(memory, BOUNDS) in (5, 6)


def test_a_reward_of_nothing_at_all_has_collapsed() -> None:
    """A window of equal rewards has no spread, and is no less certain for it."""
    nothing = measured(reward=Reward(0.0, 0.0, 0.0))
    memory = remembering([GOOD] * 10 + [nothing] * 3)
    refusal = judge(memory, nothing, BOUNDS)
    assert refusal is not None
    assert refusal.why is Why.REWARD_COLLAPSE


def test_rewards_of_any_scale_and_sign_are_judged_alike() -> None:
    for scale, shift in [(1.0, 0.0), (1000.0, -5000.0), (1e-3, 7.0)]:

        def reward(mean: float, scale: float = scale, shift: float = shift) -> Reward:
            return Reward(shift + scale * mean, 0.03 * scale, 0.09 * scale**2)

        memory = remembering([measured(reward=reward(0.9))] * 10)
        for mean, refused in [(0.7, False), (0.2, True)]:
            later, verdicts = memory, []
            for version in range(11, 11 + BOUNDS.reward_window):
                measures = measured(reward=reward(mean))
                verdicts.append(judge(later, measures, BOUNDS))
                later = later.after(version, measures, BOUNDS)
            assert any(verdicts) == refused


@pytest.mark.parametrize("runs", [10, pytest.param(300, marks=pytest.mark.slow)])
def test_no_false_alarm_in_simulated_runs(runs: int) -> None:
    """Runs that learn, stall, dip by a quarter and recover, with noisy rewards and norms. None of
    60,000 honest updates refused bounds the rate to 5e-5 (95 % confidence)."""
    for seed in range(runs):
        rng = random.Random(seed)
        memory = Memory()
        start, end = sorted(rng.uniform(0.05, 0.95) for _ in range(2))
        spread = rng.uniform(0.1, 0.7)
        for step in range(200):
            trend = start + (end - start) * min(1.0, step / 60)
            trend -= 0.25 * trend * (100 <= step < 115)
            error = rng.uniform(0.02, 0.06)
            measures = measured(
                grad_norm=0.1 * math.exp(rng.gauss(0, spread)),
                reward=Reward(trend + rng.gauss(0, error), error, trend * (1 - trend)),
            )
            assert judge(memory, measures, BOUNDS) is None, (seed, step)
            memory = memory.after(step + 1, measures, BOUNDS)


def of_arms(
    difficulty: Sequence[float], shares: Sequence[float], ability: float, rng: random.Random
) -> Reward:
    """Binary rewards of 16 groups drawn from arms by their shares; a policy of ability 1 solves a
    share of 1 - difficulty of each."""
    arms = rng.choices(range(len(difficulty)), shares, k=16)
    drawn = []
    for arm in arms:
        solved = min(1.0, max(0.0, rng.gauss((1 - difficulty[arm]) * ability, 0.1)))
        drawn.append([float(rng.random() < solved) for _ in range(8)])
    return Reward.of(drawn, arms)


def first_refusal(seen: Iterable[Reward]) -> tuple[int, Refusal] | None:
    memory = Memory()
    for version, reward in enumerate(seen, 1):
        measures = measured(reward=reward)
        refusal = judge(memory, measures, BOUNDS)
        if refusal is not None:
            return version, refusal
        memory = memory.after(version, measures, BOUNDS)
    return None


def shifting(step: int, arms: int) -> list[float]:
    """A curriculum that asks for easy arms at first and for hard ones later, at once from step 40
    on if there are two, one arm after another otherwise."""
    if arms == 2:
        return [1.0, 0.02] if step < 40 else [0.02, 1.0]
    return [math.exp(-abs(arm - arms * step / 80) * 8 / arms) for arm in range(arms)]


@pytest.mark.parametrize("arms", [2, 10, 200])
@pytest.mark.parametrize("runs", [1, pytest.param(30, marks=pytest.mark.slow)])
def test_harder_prompts_are_no_collapse_and_a_collapse_among_them_is(arms: int, runs: int) -> None:
    difficulty = [0.05 + 0.9 * arm / (arms - 1) for arm in range(arms)]
    unlabelled = 0
    for seed in range(runs):
        rng = random.Random(seed)
        well = [of_arms(difficulty, shifting(step, arms), 1.0, rng) for step in range(80)]
        assert first_refusal(well) is None, seed
        unlabelled += first_refusal(msgspec.structs.replace(r, arms=()) for r in well) is not None
        when = rng.randrange(10, 30)  # while there is a reward to lose
        broken = [of_arms(difficulty, shifting(s, arms), 0.02, rng) for s in range(when, 80)]
        found = first_refusal([*well[:when], *broken])
        assert found is not None, seed
        version, refusal = found
        assert refusal.why is Why.REWARD_COLLAPSE
        assert when < version <= when + 2 * BOUNDS.reward_window
        assert refusal.back_to is not None
        assert refusal.back_to < when
    assert unlabelled > 0  # so it is the arms that make the difference


@given(
    st.lists(st.floats(1e-6, 1e6), min_size=0, max_size=40),
    st.floats(1e-6, 1e6),
    st.floats(1.0, 100.0),
)
def test_a_norm_up_to_the_factor_is_never_a_spike(
    norms: list[float], norm: float, factor: float
) -> None:
    bounds = GuardSection(gradient_factor=factor)
    memory = Memory(norms=tuple(norms))
    refusal = judge(memory, measured(grad_norm=norm), bounds)
    logs = sorted(math.log(one) for one in norms)
    if len(norms) < bounds.gradient_warmup or math.log(norm) <= median(logs) + math.log(factor):
        assert refusal is None
    elif refusal is not None:
        assert refusal.why is Why.GRADIENT_SPIKE


@given(
    st.lists(st.tuples(st.floats(-100, 100), st.floats(0, 10), st.floats(0, 100)), max_size=80),
    st.lists(st.floats(0, 1e3), max_size=80),
)
def test_memory_is_bounded_and_survives_its_json(
    seen: list[tuple[float, float, float]], norms: list[float]
) -> None:
    memory = Memory()
    for version, (reward, norm) in enumerate(zip(seen, [*norms, *[1.0] * 80], strict=False), 1):
        memory = memory.after(version, measured(grad_norm=norm, reward=Reward(*reward)), BOUNDS)
    assert len(memory.norms) <= BOUNDS.gradient_window
    assert len(memory.rewards) <= BOUNDS.reward_memory
    assert Memory.from_json(msgspec.json.decode(msgspec.json.encode(memory.to_json()))) == memory
    good = good_version(memory, BOUNDS)
    assert (good is None) == (len(memory.rewards) < BOUNDS.reward_window)
    assert good is None or 0 <= good < len(seen)


@given(st.integers(0, 3), st.floats(0, 1), st.floats(0, 0.2), st.floats(0.001, 1))
def test_fewer_updates_than_two_windows_have_no_collapse(
    extra: int, mean: float, error: float, variance: float
) -> None:
    memory = remembering([GOOD] * (BOUNDS.reward_window + extra))
    refusal = judge(memory, measured(reward=Reward(mean, error, variance)), BOUNDS)
    assert extra == 3 or refusal is None
