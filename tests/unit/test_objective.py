"""Losses against examples worked by hand, and what they promise for any input.

What TRL has too is compared with it in test_objective_trl.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from learner_support import make_config

from echo_hub.config import RunConfig
from echo_hub.learner import corrections, losses, measures, penalties
from echo_hub.learner.advantages import dr_grpo, gae, grpo, rloo, vtrace, whitened
from echo_hub.learner.objective import Objective, Tokens
from echo_hub.learner.samples import Part
from echo_p2p.errors import ConfigError
from echo_p2p.toml import validate

CLIP = (0.2, 0.3)


def clipped_loss(
    logprobs: torch.Tensor,
    behaviour: torch.Tensor,
    advantages: torch.Tensor,
    *,
    clip: tuple[float, float],
    normaliser: float,
) -> torch.Tensor:
    each = losses.clipped(losses.ratio_of(logprobs, behaviour), advantages, clip=clip)
    return each.sum() / normaliser


def loss_and_gradient(
    ratio: float, advantage: float, *, normaliser: float = 1.0
) -> tuple[float, float]:
    """Loss of one token and its derivative by the learner's log-probability."""
    behaviour = torch.tensor([-1.0])
    logprobs = (behaviour + math.log(ratio)).requires_grad_()
    loss = clipped_loss(
        logprobs, behaviour, torch.tensor([advantage]), clip=CLIP, normaliser=normaliser
    )
    loss.backward()
    assert logprobs.grad is not None
    return loss.item(), logprobs.grad.item()


def test_advantages_are_reward_minus_the_groups_mean():
    rewards = torch.tensor([[1.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 4.0]])
    expected = torch.tensor([[0.5, -0.5, -0.5, 0.5], [-1.0, -1.0, -1.0, 3.0]])
    assert torch.equal(dr_grpo(rewards), expected)


def test_scaled_advantages_divide_by_the_sample_deviation():
    # mean 2, deviation sqrt((4 + 0 + 4) / 2) = 2
    advantages = grpo(torch.tensor([[0.0, 2.0, 4.0]]))
    torch.testing.assert_close(advantages, torch.tensor([[-1.0, 0.0, 1.0]]), atol=1e-4, rtol=0)


@given(st.floats(-1e6, 1e6, width=32), st.integers(2, 64))
def test_equal_rewards_have_no_advantage_at_all(reward: float, size: int):
    # 0.1 * 7 / 7 is not 0.1 in float32: the mean must not be trusted here
    for advantages in (dr_grpo, grpo, rloo):
        assert not advantages(torch.full((1, size), reward)).any()


def test_rloo_is_reward_minus_the_mean_of_the_others():
    # 4 - (0 + 2) / 2, 0 - (4 + 2) / 2, 2 - (4 + 0) / 2
    assert torch.equal(rloo(torch.tensor([[4.0, 0.0, 2.0]])), torch.tensor([[3.0, -3.0, 0.0]]))


NOISE = 1e3  # stands where there is no token, and must not matter


def test_gae_by_hand():
    # two tokens with a hole between them, then one alone; discount .5, decay .5
    rewards = torch.tensor([[1.0, NOISE, 2.0], [3.0, NOISE, NOISE]])
    values = torch.tensor([[0.5, NOISE, 1.0], [1.0, NOISE, NOISE]])
    mask = torch.tensor([[True, False, True], [True, False, False]])
    # last: d = 2 - 1 = 1; first: d = 1 + .5 x 1 - .5 = 1, A = 1 + .25 x 1
    expected = torch.tensor([[1.25, 0.0, 1.0], [2.0, 0.0, 0.0]])
    assert torch.equal(gae(rewards, values, mask, discount=0.5, decay=0.5), expected)


def test_gae_with_decay_1_is_the_return_minus_the_value():
    rewards, values = torch.randn(3, 5), torch.randn(3, 5)
    found = gae(rewards, values, torch.ones(3, 5).bool(), discount=1.0, decay=1.0)
    returns = rewards.flip(1).cumsum(1).flip(1)
    torch.testing.assert_close(found, returns - values)


def test_vtrace_by_hand():
    rewards = torch.tensor([[1.0, NOISE, 2.0]])
    values = torch.tensor([[0.5, NOISE, 1.0]])
    ratios = torch.tensor([[4.0, NOISE, 0.5]])
    mask = torch.tensor([[True, False, True]])
    targets, advantages = vtrace(
        rewards, values, ratios.log(), mask, discount=0.5, ceilings=(2.0, 1.0)
    )
    # last: rho .5, d = 2 - 1 = 1, v = 1 + .5 = 1.5, A = 2 - 1 = 1
    # first: rho 2, c 1, d = 1 + .5 x 1 - .5 = 1, v = .5 + 2 x 1 + .5 x 1 x (1.5 - 1) = 2.75,
    # A = 1 + .5 x 1.5 - .5 = 1.25
    torch.testing.assert_close(targets, torch.tensor([[2.75, 0.0, 1.5]]))
    torch.testing.assert_close(advantages, torch.tensor([[1.25, 0.0, 1.0]]))


@settings(max_examples=30)
@given(st.integers(0, 2**31), st.floats(0.1, 1.0))
def test_vtrace_on_policy_is_the_return(seed: int, discount: float):
    # Espeholt et al. 2018, remark 1: with ratios 1, its targets are those of n-step Bellman
    draw = torch.Generator().manual_seed(seed)
    rewards, values = torch.rand(2, 4, 6, generator=draw, dtype=torch.float64)
    mask = torch.rand(4, 6, generator=draw) > 0.3
    targets, advantages = vtrace(
        rewards, values, torch.zeros(4, 6), mask, discount=discount, ceilings=(1.0, 1.0)
    )
    full = gae(rewards, values, mask, discount=discount, decay=1.0)
    torch.testing.assert_close(advantages, full)
    torch.testing.assert_close(targets[mask], (full + values)[mask])


@settings(max_examples=30)
@given(st.integers(0, 2**31), st.sampled_from([0.0, -7.0, 1e30, math.inf, math.nan]))
def test_what_stands_where_no_token_is_never_matters(seed: int, noise: float):
    draw = torch.Generator().manual_seed(seed)
    numbers = torch.randn(3, 4, 6, generator=draw)
    mask = torch.rand(4, 6, generator=draw) > 0.4
    other = numbers.masked_fill(~mask, noise)
    found = [gae(one[0], one[1], mask, discount=0.9, decay=0.8) for one in (numbers, other)]
    assert torch.equal(found[0], found[1])
    for one, same in zip(
        *(vtrace(*each, mask, discount=0.9, ceilings=(1.0, 1.0)) for each in (numbers, other)),
        strict=True,
    ):
        assert torch.equal(one, same)


def test_whitened_advantages_have_mean_0_and_deviation_1():
    found = whitened(torch.tensor([1.0, 2.0, 6.0]))
    assert found.mean().item() == pytest.approx(0.0, abs=1e-6)
    assert found.square().mean().item() == pytest.approx(1.0, abs=1e-6)
    assert not whitened(torch.full((3,), 2.0)).any()


def test_value_errors_by_hand():
    values, targets, before = torch.tensor([1.0, 3.0]), torch.tensor([0.0, 5.0]), torch.zeros(2)
    assert losses.value_errors(values, targets, before).tolist() == [0.5, 2.0]
    # held within 1 of before: 1 and 1; errors 1 and 16
    assert losses.value_errors(values, targets, before, clip=1.0).tolist() == [0.5, 8.0]


def test_kl_estimates_by_hand():
    apart = torch.tensor([math.log(2.0)])
    found = {how: penalties.kl(apart, torch.zeros(1), how).item() for how in ("k1", "k2", "k3")}
    assert found["k1"] == pytest.approx(math.log(2.0))
    assert found["k2"] == pytest.approx(0.5 * math.log(2.0) ** 2)
    assert found["k3"] == pytest.approx(0.5 - 1.0 + math.log(2.0))


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_kl_estimates_are_right_on_average(estimator: Any):
    torch.manual_seed(0)
    learner, reference = torch.tensor([0.6, 0.3, 0.1]), torch.tensor([0.5, 0.25, 0.25])
    drawn = torch.multinomial(learner, 200_000, replacement=True)
    found = penalties.kl(learner.log()[drawn], reference.log()[drawn], estimator).mean()
    assert float(found) == pytest.approx(
        float((learner * (learner / reference).log()).sum()), rel=0.03
    )


def test_the_gradient_of_k2_is_that_of_the_divergence():
    scores = torch.tensor([0.3, -0.2, 0.5], requires_grad=True)
    reference = torch.tensor([0.5, 0.25, 0.25]).log()
    exact = (scores.softmax(0) * (scores.log_softmax(0) - reference)).sum()
    estimate = penalties.kl(scores.log_softmax(0), reference, "k2") * scores.softmax(0).detach()
    (wanted,) = torch.autograd.grad(exact, scores)
    (found,) = torch.autograd.grad(estimate.sum(), scores)
    torch.testing.assert_close(found, wanted)


def test_interpolated_proximal_policies():
    behaviour, learner = torch.full((4,), -1.0), torch.full((4,), -3.0)
    lags = torch.tensor([0.0, 1.0, 3.0, 9.0])
    # A-3PO: of d = lag + 1 versions the behaviour keeps a share of 1 / d
    found = corrections.loglinear_proximal(learner, behaviour, lags)
    torch.testing.assert_close(found, torch.tensor([-1.0, -2.0, -2.5, -2.8]))


def test_weights_of_tokens_and_of_sequences():
    proximal, behaviour = torch.tensor([2.0, 3.0, 5.0]).log(), torch.zeros(3)
    lengths = torch.tensor([2, 1])
    of_tokens = corrections.importance(proximal, behaviour, lengths, sequence=False)
    of_sequences = corrections.importance(proximal, behaviour, lengths, sequence=True)
    torch.testing.assert_close(of_tokens, torch.tensor([2.0, 3.0, 5.0]))
    torch.testing.assert_close(of_sequences, torch.tensor([6.0, 6.0, 5.0]))
    assert corrections.truncated(of_tokens, (2.5, 4.0)).tolist() == pytest.approx([2.5, 3.0, 4.0])
    assert corrections.masked(of_tokens, (2.5, 4.0)).tolist() == pytest.approx([0.0, 3.0, 0.0])


def test_decoupled_loss_by_hand():
    # behaviour .5, learner .8, lag 1: proximal sqrt(.4); ratio sqrt(1.6), clipped at 1.2
    rules = make_config(
        learner={"correction": "decoupled", "proximal": "loglinear", "clip": (0.2, 0.2)}
    ).learner
    tokens = Tokens(
        logprobs=torch.tensor([0.8]).log(),
        behaviour=torch.tensor([0.5]).log(),
        advantages=torch.tensor([2.0]),
        lags=torch.tensor([1.0]),
        lengths=torch.tensor([1]),
        entropy=torch.zeros(1),
    )
    outcome = Objective(rules, limit=10)(tokens, Part([[]], rollouts=1, tokens=1))
    weight, ratio = math.sqrt(0.4) / 0.5, math.sqrt(1.6)
    assert outcome.ratios.item() == pytest.approx(ratio)
    assert outcome.loss.item() == pytest.approx(-weight * 1.2 * 2.0 / 10)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (1.0, 2.0, -2.0, -2.0),
        (1.1, 2.0, -2.2, -2.2),  # inside the range: -r A, gradient -r A
        (1.5, 2.0, -2.6, 0.0),  # up far enough: clipped at 1.3
        (0.5, 2.0, -1.0, -1.0),  # liked less than by the node, and good: no clipping
        (0.5, -2.0, 1.6, 0.0),  # down far enough: clipped at 0.8
        (1.5, -2.0, 3.0, 3.0),  # liked more than by the node, and bad: no clipping
        (9.0, -2.0, 2.0 * losses.RATIO_CEILING, 0.0),  # but not without a ceiling
    ],
)
def test_clipped_loss(ratio: float, advantage: float, loss: float, gradient: float):
    assert loss_and_gradient(ratio, advantage) == pytest.approx((loss, gradient), abs=1e-5)


def test_loss_is_summed_over_tokens_and_divided_by_one_number():
    logprobs = torch.tensor([-1.0, -2.0, -0.5])
    advantages = torch.tensor([1.0, 1.0, -3.0])
    loss = clipped_loss(logprobs, logprobs.clone(), advantages, clip=CLIP, normaliser=20.0)
    assert loss.item() == pytest.approx((-1.0 - 1.0 + 3.0) / 20.0)


def test_impossible_claims_give_finite_gradients():
    behaviour = torch.tensor([-1e30, -1e30, 0.0, 0.0])
    logprobs = torch.tensor([-1.0, -1.0, -1e30, -1e30], requires_grad=True)
    advantages = torch.tensor([1.0, -1.0, 1.0, -1.0])
    loss = clipped_loss(logprobs, behaviour, advantages, clip=CLIP, normaliser=1.0)
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(logprobs.grad).all()


def test_ratio_metrics_by_hand():
    ratios = torch.tensor([1.0, 0.5, 2.0, 1.25])
    metrics = measures.ratio_metrics(ratios.log())
    assert measures.clip_fraction(ratios, CLIP) == pytest.approx(2 / 4)
    assert metrics["ratio_mean"] == pytest.approx(4.75 / 4)
    assert metrics["ratio_max"] == pytest.approx(2.0)
    assert metrics["ess"] == pytest.approx(4.75**2 / (4 * (1 + 0.25 + 4 + 1.5625)))
    # mean of r - 1 is 0.1875; the logarithms of 0.5 and 2 cancel out
    assert metrics["kl"] == pytest.approx(0.1875 - math.log(1.25) / 4)


def test_ratio_metrics_of_one_and_the_same_policy_and_of_no_tokens():
    same = {"kl": 0.0, "ratio_mean": 1.0, "ratio_max": 1.0, "ess": 1.0}
    assert measures.ratio_metrics(torch.zeros(5)) == same
    assert measures.ratio_metrics(torch.zeros(0)) == same
    assert measures.clip_fraction(torch.ones(0), CLIP) == 0.0
    assert measures.mismatch(torch.zeros(0)) == {"lag0_tokens": 0.0}


def test_lags_and_cosines():
    found = measures.lag_metrics([2, 0, 2, 1])
    assert found == {"lag_mean": 1.25, "lag_max": 2.0, "lag_0": 1.0, "lag_1": 1.0, "lag_2": 2.0}
    one = [torch.tensor([3.0, 0.0]), torch.tensor([[4.0]])]
    other = [torch.tensor([0.0, 7.0]), torch.tensor([[5.0]])]
    assert measures.cosine(one, one) == pytest.approx(1.0)
    assert measures.cosine(one, other) == pytest.approx(20 / (5 * math.sqrt(74)))
    assert measures.cosine(one, [torch.zeros(2), torch.zeros(1, 1)]) == 0.0


def test_kl_estimate_is_right_on_average():
    torch.manual_seed(0)
    node, learner = torch.tensor([0.6, 0.3, 0.1]), torch.tensor([0.5, 0.25, 0.25])
    drawn = torch.multinomial(node, 200_000, replacement=True)
    exact = float((node * (node / learner).log()).sum())
    estimate = measures.ratio_metrics((learner / node).log()[drawn])["kl"]
    assert estimate == pytest.approx(exact, rel=0.03)


# --- for any input ------------------------------------------------------------------------------

SHAPES: list[dict[str, Any]] = [
    {"loss": name} for name in ("dr_grpo", "grpo", "dapo", "gspo", "cispo")
] + [
    {"loss": "ppo", "advantage": "gae", "value_clip": 0.2},
    {"loss": "dpo"},
    {"correction": "tis", "kl": 0.1, "kl_estimator": "k1"},
    {"correction": "mis", "correction_level": "sequence", "kl": 0.1, "kl_estimator": "k2"},
    {"correction": "decoupled", "proximal": "loglinear", "kl": 0.1, "entropy_bonus": 0.1},
]  # fmt: skip


def made_up(draw: torch.Generator, lengths: torch.Tensor, scale: float) -> dict[str, torch.Tensor]:
    """Every tensor an objective may be given, [N]; `scale` is how wild its numbers are."""
    count = int(lengths.sum())
    names = ("logprobs", "behaviour", "reference", "proximal", "entropy", "values", "targets")
    found = {name: scale * torch.randn(count, generator=draw) for name in names}
    found["advantages"] = torch.randn(count, generator=draw)
    found["lags"] = torch.randint(0, 9, (count,), generator=draw).float()
    found["before"] = found["values"].clone()
    for name in ("logprobs", "entropy", "values"):
        found[name].requires_grad_()
    return found


def outcome_of(learner: dict[str, Any], numbers: dict[str, torch.Tensor], lengths: torch.Tensor,
               *, whole: tuple[int, int]) -> torch.Tensor:  # fmt: skip
    """Loss and value loss of one micro-batch of a step of `whole` rollouts and tokens."""
    objective = Objective(make_config(learner=learner).learner, limit=50)
    unneeded = {
        "reference": objective.needs_reference,
        "values": objective.needs_values,
    }
    given_ = {name: None if unneeded.get(name) is False else t for name, t in numbers.items()}
    part = Part([[]] * (whole[0] // 2), rollouts=whole[0], tokens=whole[1])
    outcome = objective(Tokens(**given_, lengths=lengths), part)  # type: ignore[arg-type]
    return outcome.loss if outcome.value_loss is None else outcome.loss + outcome.value_loss


@pytest.mark.parametrize("learner", SHAPES, ids=str)
@settings(max_examples=10)
@given(st.integers(0, 2**31), st.lists(st.integers(1, 5), min_size=2, max_size=6), st.data())
def test_cutting_into_micro_batches_never_matters(
    learner: dict[str, Any], seed: int, sizes: list[int], data: st.DataObject
):
    sizes = sizes[: len(sizes) // 2 * 2]  # in pairs, for dpo
    cut = data.draw(st.integers(0, len(sizes) // 2)) * 2
    lengths = torch.tensor(sizes)
    numbers = made_up(torch.Generator().manual_seed(seed), lengths, 1.0)
    whole, at = (len(sizes), sum(sizes)), sum(sizes[:cut])
    together = outcome_of(learner, numbers, lengths, whole=whole)
    parts = [
        outcome_of(learner, {n: t[piece] for n, t in numbers.items()}, some, whole=whole)
        for piece, some in ((slice(at), lengths[:cut]), (slice(at, None), lengths[cut:]))
        if len(some)
    ]
    torch.testing.assert_close(sum(parts), together, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("learner", SHAPES, ids=str)
@settings(max_examples=10)
@given(st.integers(0, 2**31), st.sampled_from([1e-3, 1.0, 1e2, 1e6, 1e12]))
def test_gradients_are_finite_for_any_finite_input(
    learner: dict[str, Any], seed: int, scale: float
):
    lengths = torch.tensor([3, 1, 2, 2])
    numbers = made_up(torch.Generator().manual_seed(seed), lengths, scale)
    loss = outcome_of(learner, numbers, lengths, whole=(4, 8))
    assert torch.isfinite(loss)
    leaves = [numbers[name] for name in ("logprobs", "entropy", "values")]
    for found in torch.autograd.grad(loss, leaves, allow_unused=True):
        assert found is None or torch.isfinite(found).all()


@given(st.floats(-1e30, 1e30), st.floats(-1e3, 1e3), st.floats(1.5, 10))
def test_no_token_pushes_harder_than_the_ceilings_allow(
    log_ratio: float, advantage: float, top: float
):
    logprob = torch.tensor([log_ratio], requires_grad=True)
    ratio = losses.ratio_of(logprob, torch.zeros(1))
    loss = losses.clipped(ratio, torch.tensor([advantage]), clip=CLIP, ceiling=top)
    (gradient,) = torch.autograd.grad(loss.sum(), logprob)
    bound = (top if advantage < 0 else 1.0 + CLIP[1]) * abs(advantage)
    bound = bound * (1 + 1e-5) + 1e-30  # rounding, and numbers too small for float32
    assert abs(loss.item()) <= bound
    assert abs(gradient.item()) <= bound


# --- combinations that make no sense ------------------------------------------------------------


@pytest.mark.parametrize(
    ("learner", "field"),
    [
        ({"loss": "ppo"}, "advantage"),
        ({"advantage": "gae"}, "loss"),
        ({"loss": "dpo", "correction": "tis"}, "correction"),
        ({"loss": "dpo", "kl": 0.1}, "kl"),
        ({"loss": "dpo", "entropy_bonus": 0.1}, "entropy_bonus"),
        ({"correction_level": "sequence"}, "correction_level"),
        ({"loss": "ppo", "advantage": "vtrace", "correction": "mis"}, "correction"),
        ({"proximal": "loglinear"}, "proximal"),
        ({"weight_bounds": (2.0, 1.0)}, "weight_bounds"),
        ({"ratio_ceiling": 1.1}, "ratio_ceiling"),
        ({"steps_per_update": 64}, "steps_per_update"),
        ({"adapter": "none", "kl": 0.1}, "adapter"),
        ({"overlong_tokens": 64}, "overlong_tokens"),
    ],
)
def test_nonsense_is_refused_at_start(learner: dict[str, Any], field: str):
    with pytest.raises(ConfigError, match=rf"run.toml: learner\.{field}: "):
        validate({"run": {"id": "x"}, "learner": learner}, RunConfig, source="run.toml")
