"""What nodes handed in, as texts: answers token by token, and the advantage of each. Pure.

Everything here was written by whoever holds a node's key: it is data to show, never markup.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev

from echo_hub.api import models
from echo_hub.config.learner import LearnerSection
from echo_hub.learner.penalties import shaped
from echo_hub.tokens import Tokenizer
from echo_p2p.envelope import open_envelope
from echo_p2p.wire import Rollout, Submission, unpack_logprobs, unpack_tokens

GROUP_DEVIATION_FLOOR = 1e-4
"""As in `learner.advantages`, which needs torch."""


def rollouts_of(envelope: bytes, node: bytes) -> tuple[Rollout, ...]:
    """The rollouts of a group as it was signed."""
    return open_envelope(envelope, Submission, key=node).message.rollouts


def answer_text(tokenizer: Tokenizer, rollout: Rollout) -> str:
    """An answer's text, without its end-of-sequence token."""
    return tokenizer.decode(unpack_tokens(rollout.tokens))


def told(
    rollouts: Sequence[Rollout],
    tokenizer: Tokenizer,
    *,
    rewards: Sequence[float] | None,
    advantages: Sequence[float] | None,
) -> list[models.Rollout]:
    """The answers of a group, piece by piece."""
    found = []
    for number, rollout in enumerate(rollouts):
        tokens = unpack_tokens(rollout.tokens)
        found.append(
            models.Rollout(
                text=tokenizer.decode(tokens),
                tokens=tokenizer.pieces(tokens),
                logprobs=unpack_logprobs(rollout.logprobs),
                observed=list(rollout.observed),
                finish=rollout.finish,
                reward=None if rewards is None else rewards[number],
                advantage=None if advantages is None else advantages[number],
            )
        )
    return found


def sampled_lengths(rollouts: Sequence[Rollout]) -> list[int]:
    """Of each answer, how many tokens the policy drew."""
    return [
        len(unpack_tokens(one.tokens)) - sum(end - start for start, end in one.observed)
        for one in rollouts
    ]


def advantages_of(
    rewards: Sequence[float] | None, lengths: Sequence[int], rules: LearnerSection, *, limit: int
) -> list[float] | None:
    """Each answer's advantage by the run's rules; None where it has none of its own, because
    there is no reward yet or a value function judges each token.

    Args:
        lengths: sampled tokens of each answer; `limit` is the most it may have.
    """
    if rewards is None or rules.advantage not in ("dr_grpo", "grpo", "rloo"):
        return None
    worth = list(rewards)
    if rules.overlong_tokens:
        worth = shaped(worth, lengths, limit=limit, tolerance=rules.overlong_tokens)
    if len(worth) < 2 or max(worth) == min(worth):
        return [0.0] * len(worth)
    mean = fmean(worth)
    if rules.advantage == "rloo":
        total, others = sum(worth), len(worth) - 1
        return [one - (total - one) / others for one in worth]
    scale = stdev(worth) + GROUP_DEVIATION_FLOOR if rules.advantage == "grpo" else 1.0
    return [(one - mean) / scale for one in worth]
