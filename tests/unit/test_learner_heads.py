"""Log-probabilities and entropies in pieces are those of the plain computation, gradients too."""

from __future__ import annotations

import pytest
import torch

from echo_hub.learner.heads import TokenScores, head_rows, token_scores

N, HIDDEN, VOCABULARY = 23, 8, 31


def plain(head: torch.nn.Module, hidden: torch.Tensor, targets: torch.Tensor) -> TokenScores:
    logprobs = head(hidden).log_softmax(-1)
    chosen = logprobs.gather(-1, targets[:, None])[:, 0]
    return TokenScores(chosen, -(logprobs.exp() * logprobs).sum(-1))


def in_pieces(head: torch.nn.Module, hidden: torch.Tensor, targets: torch.Tensor) -> TokenScores:
    return token_scores(head, hidden, targets, rows=5)


def whole(head: torch.nn.Module, hidden: torch.Tensor, targets: torch.Tensor) -> TokenScores:
    return token_scores(head, hidden, targets, rows=N)


@pytest.fixture
def parts() -> tuple[torch.nn.Linear, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    head = torch.nn.Linear(HIDDEN, VOCABULARY).double()
    hidden = 3 * torch.randn(N, HIDDEN, dtype=torch.double)
    return head, hidden.requires_grad_(), torch.randint(VOCABULARY, (N,))


USES = {
    "log-probabilities": lambda s: (s.logprobs * torch.arange(1.0, N + 1)).sum(),
    "entropies": lambda s: (s.entropy * torch.arange(1.0, N + 1)).sum(),
    "both": lambda s: (s.logprobs.square() - 0.3 * s.entropy * torch.arange(1.0, N + 1)).sum(),
}


@pytest.mark.parametrize("way", [in_pieces, whole])
@pytest.mark.parametrize("use", USES)
def test_values_and_gradients_are_those_of_the_plain_way(parts, way, use: str):
    head, hidden, _ = parts
    expected, found = plain(*parts), way(*parts)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=1e-12)
    wanted = (hidden, head.weight, head.bias)
    theirs = torch.autograd.grad(USES[use](expected), wanted)
    for a, b in zip(torch.autograd.grad(USES[use](found), wanted), theirs, strict=True):
        torch.testing.assert_close(a, b, atol=1e-10, rtol=1e-10)


def test_no_more_than_so_many_rows_of_logits_are_made(parts):
    head, hidden, targets = parts
    seen: list[int] = []

    def counting(rows: torch.Tensor) -> torch.Tensor:
        seen.append(len(rows))
        return head(rows)

    token_scores(counting, hidden, targets, rows=5).logprobs.sum().backward()
    assert max(seen) == 5
    assert sum(seen) == 2 * N  # once forward, once for the backward pass
    for vocabulary in (32_000, 151_936, 262_144):
        logits = head_rows(vocabulary, torch.device("cpu")) * vocabulary
        assert 2 * logits > 32 << 20
        assert 4 * logits <= 72 << 20
    assert head_rows(10**9, torch.device("cpu")) == 1


def test_no_tokens_are_no_scores(parts):
    head, hidden, targets = parts
    found = token_scores(head, hidden[:0], targets[:0], rows=5)
    assert found.logprobs.shape == found.entropy.shape == (0,)
