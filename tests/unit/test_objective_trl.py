"""Advantages, corrections and losses against TRL's own code, to 1e-6, loss and gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from learner_support import make_config
from trl.rewards import get_soft_overlong_punishment
from trl_support import Dpo, Grpo, Rloo

from echo_hub.learner import advantages
from echo_hub.learner.objective import Objective, Tokens
from echo_hub.learner.penalties import overlong
from echo_hub.learner.samples import Part

GROUPS, SIZE, LIMIT = 3, 4, 9
LEARNER = {"clip": (0.2, 0.28), "ratio_ceiling": 3.0}
CLIP = {"epsilon_low": 0.2, "epsilon_high": 0.28, "delta": 3.0}


@dataclass
class Given:
    """Rollouts [B, T]; `own` is 1 where the policy sampled, 0 where an environment wrote."""

    rewards: torch.Tensor
    lengths: list[int]
    own: torch.Tensor
    learner: torch.Tensor
    before: torch.Tensor
    sampler: torch.Tensor
    reference: torch.Tensor
    entropy: torch.Tensor

    @property
    def mask(self) -> torch.Tensor:
        inside = torch.arange(max(self.lengths))[None] < torch.tensor(self.lengths)[:, None]
        return inside & self.own.bool()

    def flat(self, rows: torch.Tensor) -> torch.Tensor:
        return rows[self.mask]


def given(seed: int = 0) -> Given:
    """Answers of several lengths with holes; policies far enough apart for every clip to act."""
    draw = torch.Generator().manual_seed(seed)
    count = GROUPS * SIZE
    lengths = torch.randint(2, LIMIT + 1, (count,), generator=draw).tolist()
    shape = (count, max(lengths))

    def noise(scale: float) -> torch.Tensor:
        return scale * torch.randn(shape, generator=draw, dtype=torch.float64)

    sampler = noise(0.5) - 2.0
    before = sampler + noise(0.4)
    own = (torch.rand(shape, generator=draw) > 0.2).long()
    own[:, 0] = 1
    rewards = torch.rand(count, generator=draw, dtype=torch.float64)
    rewards[SIZE : 2 * SIZE] = 0.1  # a group without an advantage
    return Given(
        rewards=rewards,
        lengths=lengths,
        own=own,
        learner=(before + noise(0.4)).requires_grad_(),
        before=before,
        sampler=sampler,
        reference=sampler + noise(0.4),
        entropy=noise(1.0).requires_grad_(),
    )


def ours(one: Given, rewards: torch.Tensor, **learner: Any) -> torch.Tensor:
    """The loss of our objective; `rewards` are advantages [B]."""
    rules = make_config(learner={**LEARNER, **learner}).learner
    objective = Objective(rules, limit=LIMIT)
    lengths = one.mask.sum(1)
    part = Part([[]] * len(lengths), len(lengths), int(lengths.sum()))
    tokens = Tokens(
        logprobs=one.flat(one.learner),
        behaviour=one.flat(one.sampler),
        advantages=rewards.repeat_interleave(lengths),
        lags=torch.zeros(int(lengths.sum())),
        lengths=lengths,
        entropy=one.flat(one.entropy),
        reference=one.flat(one.reference) if objective.needs_reference else None,
        proximal=one.flat(one.before),
    )
    return objective(tokens, part).loss


def theirs(one: Given, scale: str, **settings: Any) -> tuple[torch.Tensor, dict[str, Any]]:
    """TRL's loss and what it computed it from; the ratio is to the sampler, or corrected for it."""
    trainer = Grpo(
        one,
        group_size=SIZE,
        scale_rewards=scale,
        **{
            **CLIP,
            "importance_sampling_level": "token",
            "max_completion_length": LIMIT,
            **settings,
        },
    )
    inputs = trainer.inputs()
    if not trainer.use_vllm:
        inputs["old_per_token_logps"] = one.sampler
    return trainer.loss(inputs), inputs


def gradients(one: Given, loss: torch.Tensor) -> list[torch.Tensor]:
    leaves = [one.learner, one.entropy]
    found = torch.autograd.grad(loss, leaves, allow_unused=True, retain_graph=True)
    return [torch.zeros_like(one.learner) if each is None else each for each in found]


def assert_same(one: Given, own: torch.Tensor, other: torch.Tensor) -> None:
    assert own.item() == pytest.approx(other.item(), abs=1e-6)
    mine, expected = gradients(one, own), gradients(one, other)
    torch.testing.assert_close(mine, expected, atol=1e-6, rtol=0)
    assert mine[0].abs().max() > 1e-3


@pytest.mark.parametrize(("name", "scale"), [("grpo", "group"), ("dr_grpo", "none")])
def test_group_advantages(name: str, scale: str) -> None:
    one = given()
    _, inputs = theirs(one, scale, loss_type="grpo")
    found = getattr(advantages, name)(one.rewards.view(GROUPS, SIZE))
    torch.testing.assert_close(found.flatten(), inputs["advantages"], atol=1e-6, rtol=0)


def test_rloo_advantages() -> None:
    one = given()
    found = advantages.rloo(one.rewards.view(GROUPS, SIZE)).flatten()
    expected = Rloo(one, group_size=SIZE).advantages()
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)


LOSSES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "grpo": ({"loss": "grpo"}, {"loss_type": "grpo"}),
    "dr_grpo": ({"loss": "dr_grpo"}, {"loss_type": "dr_grpo"}),
    "dapo": ({"loss": "dapo"}, {"loss_type": "dapo"}),
    "one-sided": ({"loss": "dapo", "ratio_ceiling": 0.0}, {"loss_type": "dapo", "delta": None}),
    "gspo": ({"loss": "gspo"}, {"loss_type": "grpo", "importance_sampling_level": "sequence"}),
    "cispo": ({"loss": "cispo"}, {"loss_type": "cispo", "epsilon_high": 1.28}),
    "kl": ({"loss": "grpo", "kl": 0.3}, {"loss_type": "grpo", "beta": 0.3}),
    "entropy": (
        {"loss": "dapo", "entropy_bonus": 0.2},
        {"loss_type": "dapo", "_entropy_bonus_enabled": True, "entropy_coef": 0.2},
    ),
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("seed", [0, 1])
def test_losses(name: str, seed: int) -> None:
    learner, settings = LOSSES[name]
    one = given(seed)
    other, inputs = theirs(one, "group", **settings)
    assert_same(one, ours(one, inputs["advantages"], **learner), other)


@pytest.mark.parametrize(
    ("learner", "mode"),
    [
        ({"correction": "tis"}, "token_truncate"),
        ({"correction": "tis", "correction_level": "sequence"}, "sequence_truncate"),
        ({"correction": "mis"}, "token_mask"),
        ({"correction": "mis", "correction_level": "sequence"}, "sequence_mask"),
        ({"correction": "decoupled"}, "token_truncate"),
    ],
)
@pytest.mark.parametrize("loss", ["dr_grpo", "gspo", "cispo"])
def test_corrections(learner: dict[str, Any], mode: str, loss: str) -> None:
    one = given(2)
    settings, extra = LOSSES[loss]
    other, inputs = theirs(
        one,
        "none",
        **extra,
        use_vllm=True,
        vllm_importance_sampling_correction=True,
        vllm_importance_sampling_mode=mode,
        vllm_importance_sampling_clip_min=0.5,
        vllm_importance_sampling_clip_max=1.5,
    )
    own = ours(one, inputs["advantages"], **settings, **learner, weight_bounds=(0.5, 1.5))
    assert_same(one, own, other)


def test_dpo() -> None:
    one = given(3)
    logps = one.learner[:6].detach().requires_grad_()
    mask = one.mask[:6].long()
    other = Dpo(0.3).loss(logps, one.reference[:6], mask)
    pairs = [0, 3, 1, 4, 2, 5]  # TRL has the better ones first, we have pair after pair
    rules = make_config(learner={"loss": "dpo", "dpo_beta": 0.3}).learner
    flat = logps[pairs][mask[pairs].bool()]
    tokens = Tokens(
        logprobs=flat,
        behaviour=flat.detach(),
        advantages=torch.zeros(len(flat)),
        lags=torch.zeros(len(flat)),
        lengths=mask[pairs].sum(1),
        entropy=torch.zeros(len(flat)),
        reference=one.reference[:6][pairs][mask[pairs].bool()],
    )
    own = Objective(rules, limit=LIMIT)(tokens, Part([[]] * 3, 6, len(flat))).loss
    assert own.item() == pytest.approx(other.item(), abs=1e-6)
    mine, expected = (torch.autograd.grad(loss, logps)[0] for loss in (own, other))
    torch.testing.assert_close(mine, expected, atol=1e-6, rtol=0)


def test_overlong_penalty() -> None:
    trl = get_soft_overlong_punishment(max_completion_len=100, soft_punish_cache=30)
    lengths = [1, 69, 70, 71, 85, 99, 100, 101, 500]
    expected = trl([[0] * length for length in lengths])
    found = [overlong(length, limit=100, tolerance=30) for length in lengths]
    assert found == pytest.approx(expected, abs=1e-6)
