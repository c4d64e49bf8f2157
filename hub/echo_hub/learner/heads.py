"""Log-probabilities and entropies of tokens, from hidden states, a few rows of logits at a time.

The logits of a batch are its largest tensor by far: 8,192 tokens of a vocabulary of 151,936 are
4.6 GiB in float32, and plain automatic differentiation holds several of that size. Here they exist
for `rows` tokens at a time, are computed again for the backward pass instead of kept, and their
gradient is written into one buffer. Values and gradients are those of the plain computation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch.utils.checkpoint import checkpoint

HEAD_ELEMENTS = 18 << 20
"""Logits in memory at once on a CPU: 72 MiB of float32. In bfloat16 too that is over 32 MiB, above
which glibc gives freed memory back to the system; below it, the pieces of a large batch have been
seen to leave gigabytes of holes in the heap."""
HEAD_ELEMENTS_ACCELERATOR = 1 << 26
"""The same elsewhere: 256 MiB, so that each piece keeps a card busy."""

Head = Callable[[torch.Tensor], torch.Tensor]
"""Hidden states [n, H] to float32 logits [n, V]."""


class TokenScores(NamedTuple):
    """Of N tokens, each [N] in float32 and differentiable: the log-probability of the token, and
    the entropy in nats of the distribution it was one draw of (of the raw logits)."""

    logprobs: torch.Tensor
    entropy: torch.Tensor


def head_rows(vocab_size: int, device: torch.device) -> int:
    """Rows of logits that may be in memory at once."""
    limit = HEAD_ELEMENTS if device.type == "cpu" else HEAD_ELEMENTS_ACCELERATOR
    return max(1, limit // vocab_size)


def slices(count: int, rows: int) -> Iterator[slice]:
    """Cuts `count` rows into pieces of at most `rows`."""
    for start in range(0, count, rows):
        yield slice(start, min(count, start + rows))


def token_scores(
    head: Head, hidden: torch.Tensor, targets: torch.Tensor, *, rows: int
) -> TokenScores:
    """Scores of the tokens `targets` [N] that hidden states [N, H] predict.

    Args:
        rows: of the logits, so many are in memory at once.
    """

    def score(hidden: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return _scores(head(hidden), targets)

    pieces = list(slices(len(hidden), rows))
    if len(pieces) <= 1:
        return TokenScores(*score(hidden, targets))
    found = [
        checkpoint(
            score, hidden[piece], targets[piece], use_reentrant=False, preserve_rng_state=False
        )
        for piece in pieces
    ]
    return TokenScores(*(torch.cat(part) for part in zip(*found, strict=True)))


def _scores(logits: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    found: tuple[torch.Tensor, torch.Tensor] = _Scores.apply(logits, targets)  # type: ignore[no-untyped-call]
    return found


class _Scores(torch.autograd.Function):
    """With p = softmax(z), log p_t = z_t - lse(z) and H = lse(z) - p.z; their gradients in z are
    1_t - p and -p (z - p.z)."""

    @staticmethod
    def forward(
        ctx: Any, logits: torch.Tensor, targets: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        lse = logits.logsumexp(-1)
        mean = (logits - lse[:, None]).exp_().mul_(logits).sum(-1)
        ctx.save_for_backward(logits, targets, lse, mean)
        ctx.set_materialize_grads(False)
        return logits.gather(-1, targets[:, None])[:, 0] - lse, lse - mean

    @staticmethod
    def backward(
        ctx: Any, of_logprob: torch.Tensor | None, of_entropy: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, None]:
        logits, targets, lse, mean = ctx.saved_tensors
        if of_logprob is None:
            of_logprob = torch.zeros_like(lse)
        gradient = (logits - lse[:, None]).exp_()
        if of_entropy is None:
            gradient.mul_(-of_logprob[:, None])
        else:
            slope = (mean[:, None] - logits).mul_(of_entropy[:, None]).sub_(of_logprob[:, None])
            gradient.mul_(slope)
        gradient.scatter_add_(-1, targets[:, None], of_logprob[:, None])
        return gradient, None
