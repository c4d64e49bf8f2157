"""An operator's own advantage and loss: used as they are, checked, and refused with a sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from learner_support import make_config

from echo_hub.learner.messages import TrainGroup, TrainRollout
from echo_hub.learner.objective import Objective, Tokens
from echo_hub.learner.samples import Part, make_batch
from echo_p2p.errors import ConfigError, LearnerError

CODE = """
import torch

def halved(rewards):
    return (rewards - rewards.mean(-1, keepdim=True)) / 2

def flat(rewards):
    return rewards[0]

def broken(rewards):
    return 1 / 0

def endless(rewards):
    return rewards / 0.0

def squared(tokens):
    return (tokens.logprobs - tokens.behaviour) ** 2

def detached(tokens):
    return tokens.logprobs.detach()

def number(tokens):
    return 3.0
"""


@pytest.fixture
def place(tmp_path: Path) -> str:
    (tmp_path / "own.py").write_text(CODE)
    return f"file:{tmp_path}/own.py"


def batch_of(advantage: str) -> Any:
    rollouts = [
        TrainRollout(tokens=[1, 2], logprobs=[-0.5, -0.5], reward=reward)
        for reward in (1.0, 0.0, 0.0, 1.0)
    ]
    group = TrainGroup(0, [3], rollouts)
    rules = make_config(learner={"advantage_function": advantage}).learner
    return make_batch([group], rules, version=0, staleness=0, limit=8)


def loss_of(loss: str) -> torch.Tensor:
    rules = make_config(learner={"loss_function": loss}).learner
    logprobs = torch.tensor([-0.5, -1.0, -1.5], requires_grad=True)
    tokens = Tokens(
        logprobs=logprobs,
        behaviour=torch.tensor([-0.5, -0.5, -0.5]),
        advantages=torch.ones(3),
        lags=torch.zeros(3),
        lengths=torch.tensor([1, 2]),
        entropy=torch.zeros(3),
    )
    return Objective(rules, limit=10)(tokens, Part([[]], rollouts=2, tokens=3)).loss


def test_advantages(place: str) -> None:
    samples = batch_of(f"{place}:halved").samples
    assert [sample.advantage for sample in samples] == [0.25, -0.25, -0.25, 0.25]


def test_a_loss_is_added_up_as_the_setting_says(place: str) -> None:
    loss = loss_of(f"{place}:squared")
    in_all = 2 * 10  # dr_grpo: rollouts x limit
    assert float(loss.detach()) == pytest.approx((0.25 + 1.0) / in_all)
    loss.backward()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("flat", r"gave \(4,\), where a tensor \(1, 4\) is wanted"),
        ("broken", "raised ZeroDivisionError"),
        ("endless", "not finite"),
    ],
)
def test_advantages_that_are_none(place: str, name: str, says: str) -> None:
    with pytest.raises(LearnerError, match=says):
        batch_of(f"{place}:{name}")


@pytest.mark.parametrize(("name", "says"), [("detached", "does not depend"), ("number", "float")])
def test_losses_that_are_none(place: str, name: str, says: str) -> None:
    with pytest.raises(LearnerError, match=says):
        loss_of(f"{place}:{name}")


@pytest.mark.parametrize(
    "learner",
    [
        {"advantage_function": "my.py"},
        {"loss_function": "file:my.py"},
        {"loss_function": "file:my.py:f", "loss": "dpo"},
        {"loss_function": "file:my.py:f", "correction": "tis"},
        {"advantage_function": "file:my.py:f", "loss": "ppo", "advantage": "gae"},
    ],
)
def test_settings_that_do_not_go_together(learner: dict[str, Any]) -> None:
    with pytest.raises((ConfigError, ValueError)):
        make_config(learner=learner)
