"""The audit of one group: a single forward pass over its prompt and answers, and no generation."""

from __future__ import annotations

from pathlib import Path

import torch

from echo_hub.audit.margins import TokenEvidence, group_keys, token_evidence
from echo_hub.audit.reader import Reader
from echo_hub.audit.sequential import EDGES
from echo_hub.learner.messages import Audit, Audited
from echo_hub.learner.policy import Policy
from echo_p2p.errors import LearnerError


class Auditor:
    """Derives groups again under the adapters they claim; the policy itself stays as it is."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._reader = Reader(policy)

    def derive(self, audit: Audit) -> Audited:
        """What a group shows.

        Raises:
            LearnerError: the adapter cannot be read, or does not give finite logits. That is a
                fault of ours, and no evidence against the node.
        """
        return summary(self.derive_tokens(audit))

    @torch.no_grad()
    def derive_tokens(self, audit: Audit) -> TokenEvidence:
        """The evidence of every token of a group, its answers laid end to end."""
        answers = [rollout.tokens for rollout in audit.rollouts]
        claims = [value for rollout in audit.rollouts for value in rollout.logprobs]
        if not all(answers) or len(claims) != sum(map(len, answers)):
            raise LearnerError("an answer is empty, or has not one log-probability for each token.")
        with self._reader.wearing(Path(audit.adapter)):
            hidden, tokens = self._reader.answers(audit.prompt, answers)
            if not torch.isfinite(hidden).all():
                raise LearnerError(f"version {audit.version} does not give finite numbers.")
            keys = group_keys(audit.seed, [len(answer) for answer in answers], tokens.device)
            logprobs = torch.tensor(claims, device=tokens.device)
            found = [
                token_evidence(
                    self._policy.logits(hidden[piece]),
                    tokens[piece],
                    logprobs[piece],
                    keys=keys[piece],
                    temperature=audit.temperature,
                    top_k=audit.top_k,
                    top_p=audit.top_p,
                )
                for piece in self._policy.slices(len(tokens))
            ]
        return TokenEvidence(*(torch.cat(part) for part in zip(*found, strict=True)))


def summary(evidence: TokenEvidence) -> Audited:
    """What the hub is told of some tokens."""
    margins, differences = evidence.margins, evidence.differences
    return Audited(
        max_margin=float(margins.max()),
        max_logprob_difference=float(differences.max()),
        mismatches=int((margins > 0).sum()),
        tokens=len(margins),
        margins=_above_edges(margins),
        differences=_above_edges(differences),
        chance=float(evidence.chances.sum()),
        bits=float(evidence.bits.sum()),
    )


def _above_edges(values: torch.Tensor) -> tuple[int, ...]:
    """How many values exceed each of `EDGES`."""
    edges = torch.tensor(EDGES, device=values.device)
    return tuple((values[:, None] > edges).sum(0).tolist())
