"""What happens to a group after its receipt: reward, then audit, then a verdict."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

from echo_hub.config import AuditSection
from echo_hub.learner.messages import Audited, AuditRollout, TrainRollout
from echo_hub.ledger.ledger import StoredGroup
from echo_hub.rollouts.buffer import ScoredGroup
from echo_hub.rollouts.checks import Code, Rejection, check_audit
from echo_hub.rollouts.leases import OpenLease
from echo_hub.scoring.pool import Scorers
from echo_hub.tasks.replay import Answered, Told
from echo_p2p.envelope import open_envelope
from echo_p2p.nursery import open_nursery
from echo_p2p.wire import Sampling, Submission, unpack_logprobs, unpack_tokens


@dataclass(frozen=True)
class Group:
    """An acknowledged group on its way to the learner.

    `version` is the policy it claims, `seed` and `sampling` how its tokens were drawn.
    `rewards` is None until it was scored and audited; `prompt` is empty until it is needed. `told`
    is what the hub's own task said in each rollout; empty if nothing was said here.
    """

    group_id: int
    lease: OpenLease
    version: int
    sampling: Sampling
    rollouts: list[AuditRollout]
    prompt: list[int]
    rewards: list[float] | None = None
    told: list[list[Told]] = field(default_factory=list)

    @property
    def seed(self) -> int:
        return self.lease.seed

    @classmethod
    def of(
        cls, group_id: int, lease: OpenLease, submission: Submission, sampling: Sampling
    ) -> Group:
        """The group in a submission that passed the cheap checks."""
        rollouts = [
            AuditRollout(
                tokens=unpack_tokens(rollout.tokens),
                logprobs=unpack_logprobs(rollout.logprobs),
                observed=list(rollout.observed),
            )
            for rollout in submission.rollouts
        ]
        return cls(group_id, lease, submission.version, sampling, rollouts, [])

    @classmethod
    def recovered(cls, stored: StoredGroup, sampling: Sampling) -> Group:
        """A group that was acknowledged before a restart."""
        submission = open_envelope(stored.envelope, Submission, key=stored.lease.node).message
        group = cls.of(stored.group_id, stored.lease, submission, sampling)
        return replace(group, rewards=stored.rewards)

    def scored(self, rewards: Sequence[float]) -> ScoredGroup:
        """What the buffer holds of it."""
        return ScoredGroup(
            group_id=self.group_id,
            lease_id=self.lease.lease_id,
            node=self.lease.node,
            version=self.version,
            prompt=self.prompt,
            rollouts=[
                TrainRollout(
                    tokens=rollout.tokens,
                    logprobs=rollout.logprobs,
                    reward=reward,
                    observed=rollout.observed,
                )
                for rollout, reward in zip(self.rollouts, rewards, strict=True)
            ],
        )


Audit = Callable[[Group], Awaitable[Audited | None]]
"""Derives a group again; None if that cannot be done now, which is not the node's fault."""


@dataclass(frozen=True)
class Assessed:
    """A group with its prompt; its rewards, or why it is not fit to be trained on.

    `evidence` is what the audit found, if there was one.
    """

    group: Group
    verdict: list[float] | Rejection
    evidence: Audited | None = None


@dataclass
class Assessor:
    """Scores and audits groups. `audited` and `not_audited` count the groups chosen for audit, and
    `auditing` those that wait for theirs.

    `probability` says how likely a node's next group is to be chosen; of held-out ones at least
    `heldout`. One that was chosen is never
    trained on without its audit.
    """

    scorers: Scorers
    audit: Audit
    rules: AuditSection
    probability: Callable[[bytes], float]
    rng: random.Random
    heldout: float = 1.0
    audited: int = 0
    not_audited: int = 0
    auditing: int = 0

    async def assess(self, group: Group) -> Assessed:
        """Score and, if it is chosen, audit a group."""
        lease = group.lease
        prompt = (await self.scorers.prompts(lease.split, [lease.index]))[0]
        if isinstance(prompt, str):
            return Assessed(group, Rejection(Code.SCORE_FAILED, prompt))
        group = replace(group, prompt=prompt)
        if group.rewards is not None:
            return Assessed(group, group.rewards)
        rewards = await self.scorers.score(
            lease.split,
            lease.index,
            prompt,
            [
                Answered(rollout.tokens, rollout.observed, group.told[i] if group.told else [])
                for i, rollout in enumerate(group.rollouts)
            ],
        )
        least = self.heldout if lease.split == "heldout" else 0.0
        chosen = self.rng.random() < max(least, self.probability(lease.node))
        if isinstance(rewards, Rejection) or not chosen:
            return Assessed(group, rewards)
        return await self._audit(group, rewards)

    async def audit_now(self, groups: Sequence[Group]) -> list[Assessed]:
        """Audit groups that were scored and that chance had not chosen."""
        found: dict[int, Assessed] = {}

        async def look(group: Group) -> None:
            found[group.group_id] = await self._audit(group, group.rewards or [])

        async with open_nursery() as nursery:
            for group in groups:
                nursery.start_soon(look, group)
        return [found[group.group_id] for group in groups]

    async def _audit(self, group: Group, rewards: list[float]) -> Assessed:
        self.auditing += 1
        try:
            evidence = await self.audit(group)
        finally:
            self.auditing -= 1
        if evidence is None:
            self.not_audited += 1
            return Assessed(group, Rejection(Code.NOT_AUDITED))
        self.audited += 1
        rejection = check_audit(
            evidence,
            max_margin=self.rules.max_margin,
            max_logprob_difference=self.rules.max_logprob_difference,
        )
        return Assessed(group, rejection or rewards, evidence)
