"""The value head: what a rollout is expected to earn, read off the policy's hidden states.

A linear layer, float32, that starts at zero, and its optimiser. It reads hidden states without a
gradient, so its training never moves the policy. It is the learner's own: part of the checkpoint,
never of the published adapter.
"""

from __future__ import annotations

import torch


class ValueHead:
    """`weight` [H + 1] ends with the bias; `state` is all that changes, changed in place."""

    def __init__(self, width: int, device: torch.device, *, learning_rate: float) -> None:
        self.weight = torch.nn.Parameter(torch.zeros(width + 1, device=device))
        self._optimizer = torch.optim.AdamW([self.weight], lr=learning_rate, weight_decay=0.0)
        slots = {
            "step": torch.zeros(()),
            "exp_avg": torch.zeros_like(self.weight.data),
            "exp_avg_sq": torch.zeros_like(self.weight.data),
        }
        self._optimizer.state[self.weight] = slots
        self.state: dict[str, torch.Tensor] = {
            "value.weight": self.weight.data,
            **{f"value.{name}": tensor for name, tensor in slots.items()},
        }

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """Values [N] of hidden states [N, H]; a state's value is that of the token it predicts."""
        return hidden.detach().float() @ self.weight[:-1] + self.weight[-1]

    def step(self, max_norm: float) -> None:
        """An optimiser step on the gradient there is, its norm held to `max_norm`."""
        torch.nn.utils.clip_grad_norm_([self.weight], max_norm)
        self._optimizer.step()
        self.weight.grad = None
