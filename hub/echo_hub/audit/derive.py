"""The audit of groups: a single forward pass over prompts and answers, and no generation.

Groups of one version whose prompts are equally long share the pass; what is found of a group does
not depend on which others are audited with it, apart from rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from echo_hub.audit.margins import TokenEvidence, group_keys, token_evidence
from echo_hub.audit.reader import Reader
from echo_hub.audit.sequential import EDGES
from echo_hub.learner.messages import Audit, Audited, AuditRollout
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

    def derive_all(self, audits: Sequence[Audit]) -> list[Audited | LearnerError]:
        """What each group shows, or the error that `derive` would raise for it."""
        found: dict[int, Audited | LearnerError] = {}
        alike: dict[tuple[object, ...], list[int]] = {}
        for i, audit in enumerate(audits):
            drawn = (audit.temperature, audit.top_k, audit.top_p)
            alike.setdefault((audit.adapter, len(audit.prompt), *drawn), []).append(i)
        for indices in alike.values():
            some = [audits[i] for i in indices]
            try:
                answers: list[Audited | LearnerError] = [summary(e) for e in self._evidence(some)]
            except LearnerError:  # of one of them: the others are none the worse for it
                answers = [self._derive_or_error(audit) for audit in some]
            found.update(zip(indices, answers, strict=True))
        return [found[i] for i in range(len(audits))]

    def derive_tokens(self, audit: Audit) -> TokenEvidence:
        """The evidence of every sampled token of a group, its answers laid end to end."""
        return self._evidence([audit])[0]

    def _derive_or_error(self, audit: Audit) -> Audited | LearnerError:
        try:
            return self.derive(audit)
        except LearnerError as error:
            return error

    @torch.no_grad()
    def _evidence(self, audits: Sequence[Audit]) -> list[TokenEvidence]:
        """Of each group, which have adapter, sampling and length of prompt in common."""
        answers = [[rollout.tokens for rollout in audit.rollouts] for audit in audits]
        rollouts = [rollout for audit in audits for rollout in audit.rollouts]
        if not all(0 < len(rollout.tokens) == len(rollout.logprobs) for rollout in rollouts):
            raise LearnerError("an answer is empty, or has not one log-probability for each token.")
        claims = [value for rollout in rollouts for value in rollout.logprobs]
        counts = [int(_sampled(audit.rollouts).sum()) for audit in audits]
        one = audits[0]
        with self._reader.wearing(Path(one.adapter)):
            prompts = [audit.prompt for audit in audits]
            hidden, tokens = self._reader.answers(list(zip(prompts, answers, strict=True)))
            if not torch.isfinite(hidden).all():
                raise LearnerError(f"version {one.version} does not give finite numbers.")
            keys = torch.cat(
                [
                    group_keys(audit.seed, [len(answer) for answer in group], tokens.device)
                    for audit, group in zip(audits, answers, strict=True)
                ]
            )
            logprobs = torch.tensor(claims, device=tokens.device)
            if any(rollout.observed for rollout in rollouts):
                sampled = _sampled(rollouts).to(tokens.device)
                hidden, tokens, keys = hidden[sampled], tokens[sampled], keys[sampled]
                logprobs = logprobs[sampled]
            found = [
                token_evidence(
                    self._policy.logits(hidden[piece]),
                    tokens[piece],
                    logprobs[piece],
                    keys=keys[piece],
                    temperature=one.temperature,
                    top_k=one.top_k,
                    top_p=one.top_p,
                )
                for piece in self._policy.slices(len(tokens))
            ]
        whole = [torch.split(torch.cat(part), counts) for part in zip(*found, strict=True)]
        return [TokenEvidence(*parts) for parts in zip(*whole, strict=True)]


def _sampled(rollouts: Sequence[AuditRollout]) -> torch.Tensor:
    """Which of the tokens, laid end to end, the policy sampled: bool [T]."""
    masks = []
    for rollout in rollouts:
        mask = torch.ones(len(rollout.tokens), dtype=torch.bool)
        for start, end in rollout.observed:
            mask[start:end] = False
        masks.append(mask)
    return torch.cat(masks)


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
