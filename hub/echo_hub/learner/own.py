"""An operator's own algorithm: functions that run.toml names, called in the learner's process.

What they return is checked before it is used; what they raise refuses the update, like any other
fault of it, and the run pauses after some.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from echo_hub.own_code import load_place
from echo_p2p.errors import LearnerError


@cache
def own_function(field: str, place: str) -> Callable[[Any], Any]:
    """The function that `learner.<field>` names; ConfigError if it cannot be loaded."""
    found: Callable[[Any], Any] = load_place(place, named_by=f"learner.{field}")
    return found


def own_advantages(place: str, rewards: torch.Tensor) -> torch.Tensor:
    """The operator's advantages [groups, G] of these rewards [groups, G]."""
    found = _called("advantage_function", place, rewards.clone())
    return _checked("advantage_function", found, rewards.shape).to(rewards.dtype)


def own_loss(place: str, tokens: Any, count: int) -> torch.Tensor:
    """The operator's loss of each token [N] of a micro-batch (`objective.Tokens`)."""
    each = _checked("loss_function", _called("loss_function", place, tokens), torch.Size([count]))
    if not each.requires_grad:
        raise LearnerError("learner.loss_function gave a loss that does not depend on logprobs.")
    return each


def _called(field: str, place: str, given: Any) -> Any:
    try:
        return own_function(field, place)(given)
    except Exception as error:  # whatever it does
        raise LearnerError(
            f"learner.{field} raised {type(error).__name__}: {error}", fix="Mend it."
        ) from error


def _checked(field: str, found: Any, shape: torch.Size) -> torch.Tensor:
    if not isinstance(found, torch.Tensor) or found.shape != shape:
        got = tuple(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
        raise LearnerError(f"learner.{field} gave {got}, where a tensor {tuple(shape)} is wanted.")
    if not bool(torch.isfinite(found.detach()).all()):
        raise LearnerError(f"learner.{field} gave numbers that are not finite.")
    return found
