"""Gradient checkpointing: a layer keeps its input, and is computed again for the backward pass.

A step then holds one hidden state a layer and the activations of one layer, for about a third more
time (Chen et al. 2016, arXiv 1604.06174). It is done here, and not by the model's own switch, which
wants the model in training mode; ours stays in evaluation mode, in which nothing is dropped out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from echo_p2p.errors import ConfigError


def recompute_layers(model: torch.nn.Module) -> None:
    """From now on the model's layers are computed again for the backward pass."""
    layers = [one for one in model.modules() if isinstance(one, GradientCheckpointingLayer)]
    if not layers:
        raise ConfigError(
            f"{type(model).__name__} has no layers that can be computed again.",
            fix="Set learner.gradient_checkpointing = false.",
        )
    for layer in layers:
        layer.forward = partial(_recomputed, layer.forward)


def _recomputed(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    return checkpoint(
        partial(forward, **kwargs), *args, use_reentrant=False, preserve_rng_state=False
    )
