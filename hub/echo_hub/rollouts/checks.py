"""The cheap checks of a submission, in order of cost, and every reason code there is.

Pure: what is known of the lease and of the run comes in as arguments. The order is that of
docs/protocol.md: envelope and signature; run; lease exists, is this node's, unexpired, unanswered;
version within the window, published, not stale; sizes; token ids; how each turn ends;
log-probabilities. What was observed between turns is computed again with the reward; that and the
audit come after these, in `assess`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from echo_hub.learner.messages import Audited
from echo_hub.rollouts.leases import OpenLease
from echo_p2p.envelope import Opened, open_envelope
from echo_p2p.errors import SignatureError, WireError
from echo_p2p.wire import Rollout, Sampling, Submission

MAX_LOGPROB = 1e-3
"""A log-probability this little above zero is rounding; more is not one."""

_MAX_NOISE_SPREAD = 27.0
"""No two draws of `echo_p2p.sampling` differ by more: they lie between -3.2 and 22.9."""


class Code(StrEnum):
    """Reason codes of receipts and of later verdicts."""

    ACCEPTED = "accepted"
    BAD_ENVELOPE = "bad_envelope"
    BAD_SIGNATURE = "bad_signature"
    WRONG_SIGNER = "wrong_signer"
    WRONG_RUN = "wrong_run"
    UNKNOWN_LEASE = "unknown_lease"
    FOREIGN_LEASE = "foreign_lease"
    EXPIRED_LEASE = "expired_lease"
    DUPLICATE = "duplicate"
    VERSION_OUT_OF_WINDOW = "version_out_of_window"
    UNPUBLISHED_VERSION = "unpublished_version"
    WITHDRAWN = "withdrawn"
    STALE = "stale"
    WRONG_GROUP_SIZE = "wrong_group_size"
    BAD_TOKENS = "bad_tokens"
    BAD_FINISH = "bad_finish"
    BAD_LOGPROBS = "bad_logprobs"
    BAD_OBSERVATION = "bad_observation"
    SCORE_FAILED = "score_failed"
    AUDIT_MARGIN = "audit_margin"
    AUDIT_LOGPROB = "audit_logprob"
    NOT_AUDITED = "not_audited"
    BANNED = "banned"
    QUARANTINED = "quarantined"
    LEARNER_REFUSED = "learner_refused"
    INTERRUPTED = "interrupted"

    @property
    def sentence(self) -> str:
        """What the code means, for the person at the node."""
        return _SENTENCES[self]


_SENTENCES = {
    Code.ACCEPTED: "Accepted: on disk, and passed on to be scored.",
    Code.BAD_ENVELOPE: "This is no envelope with a submission of this protocol version.",
    Code.BAD_SIGNATURE: "The signature does not belong to the submission and its key.",
    Code.WRONG_SIGNER: "The submission is signed by another key than that of the connection.",
    Code.WRONG_RUN: "The submission is for another run.",
    Code.UNKNOWN_LEASE: "This hub never issued that lease.",
    Code.FOREIGN_LEASE: "The lease was issued to another node.",
    Code.EXPIRED_LEASE: "The lease has expired, was given back, or was withdrawn.",
    Code.DUPLICATE: "The lease has already been answered; the first answer counts.",
    Code.VERSION_OUT_OF_WINDOW: "The policy version is outside the lease's window.",
    Code.UNPUBLISHED_VERSION: "No such policy version was published.",
    Code.WITHDRAWN: "The learner went back to an earlier version than this one: no fault of yours.",
    Code.STALE: "The policy version is too old for any update to come.",
    Code.WRONG_GROUP_SIZE: "The submission has another number of rollouts than the lease ordered.",
    Code.BAD_TOKENS: "An answer is empty, too long, or has a token that is not in the vocabulary.",
    Code.BAD_FINISH: "An answer neither ends with its only stop token nor at the length limit.",
    Code.BAD_LOGPROBS: "A log-probability is missing, not finite, or not one of a sampled token.",
    Code.BAD_OBSERVATION: "An answer's turns are not followed by what the environment says.",
    Code.SCORE_FAILED: "The reward could not be computed; the group is left out.",
    Code.AUDIT_MARGIN: "A token is not the one that the claimed policy samples with this seed.",
    Code.AUDIT_LOGPROB: "A log-probability is not that of the claimed policy.",
    Code.NOT_AUDITED: "The group was due for an audit and could not be audited; it is left out.",
    Code.BANNED: "The node is banned from this run; what it handed in is left out.",
    Code.QUARANTINED: "The operator looks at what this node does; until then it is left out.",
    Code.LEARNER_REFUSED: "The learner refused the update this group was in: no fault of yours.",
    Code.INTERRUPTED: "The hub was restarted during the evaluation this group belonged to.",
}


@dataclass(frozen=True)
class Rejection:
    """A failed check: its code and, in `detail`, what exactly was found."""

    code: Code
    detail: str = ""

    @property
    def sentence(self) -> str:
        """What the hub writes down of it."""
        return f"{self.code.sentence} {self.detail}".strip()[:1000]

    @property
    def for_node(self) -> str:
        """The sentence of a receipt: what a task of the operator's says stays at the hub, since it
        may hold the right answer, or paths of its machine."""
        return self.code.sentence if self.code is Code.SCORE_FAILED else self.sentence


@dataclass(frozen=True)
class ClosedLease:
    """What the ledger knows of a lease that is no longer open."""

    node: bytes
    answered: bool


@dataclass(frozen=True)
class Standing:
    """Where the run stands, as far as admission goes.

    `next_update` is the version of the learner when the next batch is taken. `turn_tokens` is the
    longest turn of a multi-turn answer; 0 is as long as the answer. `withdrawn` are versions of
    which nothing is trained on any more.
    """

    next_update: int
    published: Collection[int]
    staleness: int
    vocab_size: int
    sampling: Sampling
    turn_tokens: int = 0
    withdrawn: Collection[int] = frozenset()


def check_envelope(data: bytes, *, run_id: str, node: bytes) -> Opened[Submission] | Rejection:
    """Open a submission's envelope that arrived on the connection of `node`."""
    try:
        opened = open_envelope(data, Submission)
    except SignatureError as error:
        return Rejection(Code.BAD_SIGNATURE, error.message)
    except WireError as error:
        return Rejection(Code.BAD_ENVELOPE, error.message[:300])
    if opened.key != node:
        return Rejection(Code.WRONG_SIGNER)
    if opened.message.run_id != run_id:
        return Rejection(Code.WRONG_RUN, f"This hub serves {run_id}.")
    return opened


def check_lease(
    lease: OpenLease | None, closed: ClosedLease | None, *, node: bytes, now: float
) -> Rejection | None:
    """Is the lease open, this node's, and in time? One of the first two is given, or neither."""
    holder = lease or closed
    if holder is None:
        return Rejection(Code.UNKNOWN_LEASE)
    if holder.node != node:
        return Rejection(Code.FOREIGN_LEASE)
    if closed is not None and closed.answered:
        return Rejection(Code.DUPLICATE)
    if lease is None:
        return Rejection(Code.EXPIRED_LEASE)
    if lease.expires_at <= now:
        return Rejection(Code.EXPIRED_LEASE, f"It ended {now - lease.expires_at:.1f} s ago.")
    return None


def check_content(submission: Submission, lease: OpenLease, standing: Standing) -> Rejection | None:
    """Version, sizes, tokens, ends and log-probabilities of an answer to an open lease."""
    return (
        _check_version(submission.version, lease, standing)
        or _check_sizes(submission.rollouts, lease.group_size, standing.sampling)
        or _check_values(submission.rollouts, standing)
    )


def _check_version(version: int, lease: OpenLease, standing: Standing) -> Rejection | None:
    if version < lease.min_version or (
        lease.max_version is not None and version > lease.max_version
    ):
        upper = "" if lease.max_version is None else f" and at most {lease.max_version}"
        return Rejection(
            Code.VERSION_OUT_OF_WINDOW,
            f"It is {version}; the lease wants at least {lease.min_version}{upper}.",
        )
    if version not in standing.published:
        return Rejection(Code.UNPUBLISHED_VERSION, f"It is {version}.")
    if lease.split == "train" and version in standing.withdrawn:
        return Rejection(Code.WITHDRAWN, f"It is {version}.")
    lag = standing.next_update - version
    if lease.split == "train" and lag > standing.staleness:
        return Rejection(
            Code.STALE, f"Its lag would be {lag}; this run allows {standing.staleness}."
        )
    return None


def _check_sizes(
    rollouts: tuple[Rollout, ...], group_size: int, sampling: Sampling
) -> Rejection | None:
    if len(rollouts) != group_size:
        return Rejection(Code.WRONG_GROUP_SIZE, f"It has {len(rollouts)}, not {group_size}.")
    for number, rollout in enumerate(rollouts):
        count, rest = divmod(len(rollout.tokens), 4)
        if rest or not 1 <= count <= sampling.max_new_tokens:
            return Rejection(
                Code.BAD_TOKENS,
                f"Rollout {number} has {count} tokens; 1 to {sampling.max_new_tokens} are allowed.",
            )
        if len(rollout.logprobs) != len(rollout.tokens):
            return Rejection(
                Code.BAD_LOGPROBS,
                f"Rollout {number} has {count} tokens and {len(rollout.logprobs) / 4:g} of them.",
            )
        if not _lie_between_turns(rollout.observed, count):
            return Rejection(
                Code.BAD_OBSERVATION,
                f"Rollout {number} has {count} tokens, of which {rollout.observed} are observed.",
            )
    return None


def _lie_between_turns(observed: Sequence[tuple[int, int]], count: int) -> bool:
    """Whether spans of an answer are in order, not empty, and have a sampled token on each side."""
    end_of_last = 0
    for start, end in observed:
        if not end_of_last < start < end < count:
            return False
        end_of_last = end
    return True


def lowest_logprob(sampling: Sampling, vocab_size: int) -> float:
    """A bound that no sampled token's raw log-probability lies below.

    The sampled token t wins: z_t / T + g_t >= z_max / T + g_max. So z_t >= z_max - T * spread of
    the noise, and log p_t >= z_t - z_max - ln(vocabulary). One nat is left for rounding.
    """
    return -(_MAX_NOISE_SPREAD * sampling.temperature + math.log(vocab_size) + 1.0)


def _check_values(rollouts: tuple[Rollout, ...], standing: Standing) -> Rejection | None:
    """All rollouts at once, as one array: this runs for every submission."""
    tokens: Any = np.frombuffer(b"".join(r.tokens for r in rollouts), dtype="<u4")
    logprobs: Any = np.frombuffer(b"".join(r.logprobs for r in rollouts), dtype="<f4")
    if tokens.max() >= standing.vocab_size:
        return Rejection(
            Code.BAD_TOKENS,
            f"Token {tokens.max()}; the vocabulary has {standing.vocab_size}.",
        )
    sampling = standing.sampling
    observed = np.zeros(len(tokens), dtype=bool)
    begin = 0
    ends_of_stopped = []
    for number, rollout in enumerate(rollouts):
        count = len(rollout.tokens) // 4
        for start, end in rollout.observed:
            ends_of_stopped.append(begin + start - 1)
            observed[begin + start : begin + end] = True
        if rollout.finish == "stop":
            ends_of_stopped.append(begin + count - 1)
        elif not _at_a_limit(rollout, count, standing):
            return Rejection(
                Code.BAD_FINISH,
                f"Rollout {number} claims to end at the limit of {sampling.max_new_tokens} "
                f"tokens but has {count}.",
            )
        begin += count
    is_stop = np.zeros(len(tokens), dtype=bool)
    for stop in sampling.stop:  # one or two: far quicker than np.isin
        is_stop |= tokens == stop
    if np.flatnonzero(is_stop & ~observed).tolist() != ends_of_stopped:
        return Rejection(Code.BAD_FINISH)
    if logprobs[observed].any():
        return Rejection(Code.BAD_LOGPROBS, "Those of observed tokens must be 0.")
    lowest = lowest_logprob(sampling, standing.vocab_size)
    # written so that NaN fails: every comparison with it is false
    if not (logprobs.min() >= lowest and logprobs.max() <= MAX_LOGPROB):
        return Rejection(Code.BAD_LOGPROBS, f"They must lie in [{lowest:.1f}, {MAX_LOGPROB}].")
    return None


def _at_a_limit(rollout: Rollout, count: int, standing: Standing) -> bool:
    """Whether an answer of `count` tokens may end without a stop token."""
    last_turn = count - (rollout.observed[-1][1] if rollout.observed else 0)
    return count == standing.sampling.max_new_tokens or last_turn == standing.turn_tokens


def check_audit(
    evidence: Audited, *, max_margin: float, max_logprob_difference: float
) -> Rejection | None:
    """The verdict on a group that was derived again. NaN in the evidence condemns it too."""
    if not evidence.max_margin <= max_margin:
        return Rejection(
            Code.AUDIT_MARGIN,
            f"{evidence.mismatches} of {evidence.tokens} tokens differ, by up to "
            f"{evidence.max_margin:.3g}; {max_margin:.3g} is allowed.",
        )
    if not evidence.max_logprob_difference <= max_logprob_difference:
        return Rejection(
            Code.AUDIT_LOGPROB,
            f"The largest difference is {evidence.max_logprob_difference:.3g}; "
            f"{max_logprob_difference:.3g} is allowed.",
        )
    return None
