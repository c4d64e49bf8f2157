"""The objective against examples worked by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from echo_hub.learner.objective import (
    RATIO_CEILING,
    clipped_loss,
    group_advantages,
    ratio_metrics,
)

CLIP = (0.2, 0.3)


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
    assert torch.equal(group_advantages(rewards), expected)


def test_scaled_advantages_divide_by_the_sample_deviation():
    # mean 2, deviation sqrt((4 + 0 + 4) / 2) = 2
    advantages = group_advantages(torch.tensor([[0.0, 2.0, 4.0]]), scale=True)
    torch.testing.assert_close(advantages, torch.tensor([[-1.0, 0.0, 1.0]]), atol=1e-4, rtol=0)


@given(st.floats(-1e6, 1e6, width=32), st.integers(2, 64))
def test_equal_rewards_have_no_advantage_at_all(reward: float, size: int):
    # 0.1 * 7 / 7 is not 0.1 in float32: the mean must not be trusted here
    assert not group_advantages(torch.full((1, size), reward)).any()


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (1.0, 2.0, -2.0, -2.0),
        (1.1, 2.0, -2.2, -2.2),  # inside the range: -r A, gradient -r A
        (1.5, 2.0, -2.6, 0.0),  # up far enough: clipped at 1.3
        (0.5, 2.0, -1.0, -1.0),  # liked less than by the node, and good: no clipping
        (0.5, -2.0, 1.6, 0.0),  # down far enough: clipped at 0.8
        (1.5, -2.0, 3.0, 3.0),  # liked more than by the node, and bad: no clipping
        (9.0, -2.0, 2.0 * RATIO_CEILING, 0.0),  # but not without a ceiling
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
    metrics = ratio_metrics(ratios.log(), CLIP)
    assert metrics["clip_fraction"] == pytest.approx(2 / 4)
    assert metrics["ratio_mean"] == pytest.approx(4.75 / 4)
    assert metrics["ratio_max"] == pytest.approx(2.0)
    assert metrics["ess"] == pytest.approx(4.75**2 / (4 * (1 + 0.25 + 4 + 1.5625)))
    # mean of r - 1 is 0.1875; the logarithms of 0.5 and 2 cancel out
    assert metrics["kl"] == pytest.approx(0.1875 - math.log(1.25) / 4)


def test_ratio_metrics_of_one_and_the_same_policy_and_of_no_tokens():
    same = {"clip_fraction": 0.0, "kl": 0.0, "ratio_mean": 1.0, "ratio_max": 1.0, "ess": 1.0}
    assert ratio_metrics(torch.zeros(5), CLIP) == same
    assert ratio_metrics(torch.zeros(0), CLIP) == same


def test_kl_estimate_is_right_on_average():
    torch.manual_seed(0)
    node, learner = torch.tensor([0.6, 0.3, 0.1]), torch.tensor([0.5, 0.25, 0.25])
    drawn = torch.multinomial(node, 200_000, replacement=True)
    exact = float((node * (node / learner).log()).sum())
    estimate = ratio_metrics((learner / node).log()[drawn], CLIP)["kl"]
    assert estimate == pytest.approx(exact, rel=0.03)
