"""The cheap checks: every fault has its own code, and the honest pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from echo_hub.learner.messages import Audited
from echo_hub.rollouts.checks import (
    ClosedLease,
    Code,
    Rejection,
    Standing,
    check_audit,
    check_content,
    check_envelope,
    check_lease,
    lowest_logprob,
)
from echo_hub.rollouts.leases import OpenLease
from echo_p2p.envelope import Opened, seal
from echo_p2p.identity import Identity
from echo_p2p.sampling import gumbel_numpy, row_keys
from echo_p2p.wire import Rollout, Sampling, Submission, pack_logprobs, pack_tokens

NODE = Identity.from_seed(b"n" * 32)
OTHER = Identity.from_seed(b"o" * 32)
STOP = 2
SAMPLING = Sampling(temperature=1.0, max_new_tokens=4, stop=(STOP, 3))
STANDING = Standing(
    next_update=5, published={2, 3, 4, 5}, staleness=2, vocab_size=50, sampling=SAMPLING
)
LEASE = OpenLease(
    lease_id=b"l" * 16,
    node=NODE.public_key,
    split="train",
    index=0,
    group_size=2,
    seed=1,
    min_version=3,
    max_version=None,
    issued_at=0.0,
    expires_at=100.0,
)


def rollout(
    tokens: Sequence[int] = (7, 8, STOP),
    logprobs: Sequence[float] | None = None,
    finish: Any = "stop",
) -> Rollout:
    values = [-0.5] * len(tokens) if logprobs is None else logprobs
    return Rollout(tokens=pack_tokens(tokens), logprobs=pack_logprobs(values), finish=finish)


def submission(*rollouts: Rollout, version: int = 4, run_id: str = "run") -> Submission:
    return Submission(
        run_id=run_id,
        lease_id=LEASE.lease_id,
        version=version,
        rollouts=rollouts or (rollout(), rollout()),
    )


def content(*rollouts: Rollout, version: int = 4, lease: OpenLease = LEASE) -> Code | None:
    rejection = check_content(submission(*rollouts, version=version), lease, STANDING)
    return None if rejection is None else rejection.code


def test_every_code_has_a_sentence_of_its_own() -> None:
    sentences = [code.sentence for code in Code]
    assert len(set(sentences)) == len(sentences)
    assert all(sentence.endswith(".") for sentence in sentences)


def envelope_code(data: bytes) -> Code | None:
    result = check_envelope(data, run_id="run", node=NODE.public_key)
    return result.code if isinstance(result, Rejection) else None


def test_envelopes() -> None:
    good = seal(NODE, submission())
    assert envelope_code(good) is None
    assert envelope_code(good[:-1] + bytes([good[-1] ^ 1])) is Code.BAD_SIGNATURE
    forged = good.replace(NODE.public_key, OTHER.public_key)
    assert envelope_code(forged) is Code.BAD_SIGNATURE
    assert envelope_code(good[:-1]) is Code.BAD_ENVELOPE
    assert envelope_code(seal(OTHER, submission())) is Code.WRONG_SIGNER
    assert envelope_code(seal(NODE, submission(run_id="another"))) is Code.WRONG_RUN


@given(st.binary(max_size=300), st.integers(0, 250))
def test_no_bytes_escape_as_an_exception(noise: bytes, at: int) -> None:
    assert envelope_code(noise) is Code.BAD_ENVELOPE
    good = seal(NODE, submission())
    spliced = good[:at] + noise + good[at + len(noise) :]
    assert envelope_code(spliced) is not None or spliced == good


@pytest.mark.parametrize(
    ("lease", "closed", "node", "now", "code"),
    [
        (LEASE, None, NODE, 99.9, None),
        (LEASE, None, NODE, 100.0, Code.EXPIRED_LEASE),
        (LEASE, None, OTHER, 0.0, Code.FOREIGN_LEASE),
        (None, None, NODE, 0.0, Code.UNKNOWN_LEASE),
        (None, ClosedLease(NODE.public_key, answered=True), NODE, 0.0, Code.DUPLICATE),
        (None, ClosedLease(NODE.public_key, answered=True), OTHER, 0.0, Code.FOREIGN_LEASE),
        (None, ClosedLease(NODE.public_key, answered=False), NODE, 0.0, Code.EXPIRED_LEASE),
    ],
)
def test_leases(
    lease: OpenLease | None,
    closed: ClosedLease | None,
    node: Identity,
    now: float,
    code: Code | None,
) -> None:
    rejection = check_lease(lease, closed, node=node.public_key, now=now)
    assert (None if rejection is None else rejection.code) is code


def test_versions() -> None:
    assert content(version=4) is None
    assert content(version=2) is Code.VERSION_OUT_OF_WINDOW
    assert content(version=6) is Code.UNPUBLISHED_VERSION
    pinned = replace(LEASE, split="heldout", min_version=2, max_version=2)
    assert content(version=2, lease=pinned) is None  # an evaluation is never stale
    assert content(version=3, lease=pinned) is Code.VERSION_OUT_OF_WINDOW
    late = replace(STANDING, next_update=6)
    rejection = check_content(submission(version=3), LEASE, late)
    assert rejection is not None
    assert rejection.code is Code.STALE
    assert "lag would be 3" in rejection.sentence


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (rollout([7, 8, 9, 10], finish="length"), None),
        (rollout([7, 8, 9, STOP]), None),
        (rollout([3]), None),
        (rollout([7, STOP], [-0.5, 5e-4]), None),
        (rollout([], []), Code.BAD_TOKENS),
        (rollout([7, 8, 9, 10, STOP]), Code.BAD_TOKENS),
        (rollout([50, STOP]), Code.BAD_TOKENS),
        (rollout([2**32 - 1, STOP]), Code.BAD_TOKENS),
        (Rollout(tokens=b"abcde", logprobs=b"abcde", finish="stop"), Code.BAD_TOKENS),
        (rollout([7, 8]), Code.BAD_FINISH),
        (rollout([7, 8], finish="length"), Code.BAD_FINISH),
        (rollout([7, 8, STOP], finish="length"), Code.BAD_FINISH),
        (rollout([7, 8, 9, STOP], finish="length"), Code.BAD_FINISH),
        (rollout([7, STOP, STOP]), Code.BAD_FINISH),
        (rollout([7, 3, 8, STOP]), Code.BAD_FINISH),
        (rollout([7, STOP, 8, 9], finish="length"), Code.BAD_FINISH),
        (rollout([7, STOP], [-0.5]), Code.BAD_LOGPROBS),
        (rollout([7, STOP], [-0.5] * 3), Code.BAD_LOGPROBS),
        (rollout([7, STOP], [-0.5, float("nan")]), Code.BAD_LOGPROBS),
        (rollout([7, STOP], [float("-inf"), -0.5]), Code.BAD_LOGPROBS),
        (rollout([7, STOP], [float("inf"), -0.5]), Code.BAD_LOGPROBS),
        (rollout([7, STOP], [-0.5, 0.01]), Code.BAD_LOGPROBS),
        (rollout([7, STOP], [-0.5, -1e4]), Code.BAD_LOGPROBS),
    ],
)
def test_rollouts(bad: Rollout, code: Code | None) -> None:
    for rollouts in ((bad, rollout()), (rollout(), bad)):
        assert content(*rollouts) is code


def turns(
    tokens: Sequence[int],
    observed: Sequence[tuple[int, int]],
    finish: Any = "stop",
    logprob: float = 0.0,
) -> Rollout:
    values = [-0.5] * len(tokens)
    for start, end in observed:
        values[start:end] = [logprob] * len(values[start:end])
    one = rollout(tokens, values, finish)
    return structs.replace(one, observed=tuple(observed))


MANY = replace(
    STANDING, sampling=Sampling(temperature=1.0, max_new_tokens=9, stop=(STOP, 3)), turn_tokens=3
)
TWICE = [7, STOP, 9, STOP, 9, 3]  # what is observed may hold a stop token


@pytest.mark.parametrize(
    ("one", "code"),
    [
        (turns(TWICE, [(2, 5)]), None),
        (turns([7, STOP, 9, 3, 5, 8, STOP], [(2, 3), (4, 5)]), None),
        (turns([7, STOP, 9, 5, 6, 7], [(2, 3)], "length"), None),  # at the turn's limit
        (turns([4, 5, STOP, *[9] * 5, 6], [(3, 8)], "length"), None),  # at the answer's
        (turns([4, 5, 6], [], "length"), None),
        (turns([7, STOP, 9, 5, 6], [(2, 3)], "length"), Code.BAD_FINISH),
        (turns([7, STOP, 9, 5, 6], [(2, 3)]), Code.BAD_FINISH),
        (turns([7, 8, 9, 5, STOP], [(2, 3)]), Code.BAD_FINISH),  # no stop before it
        (turns(TWICE, []), Code.BAD_FINISH),
        (turns(TWICE, [(2, 3)]), Code.BAD_FINISH),
        (turns(TWICE, [(0, 2)]), Code.BAD_OBSERVATION),  # nothing sampled before it
        (turns(TWICE, [(2, 6)]), Code.BAD_OBSERVATION),  # nor after it
        (turns(TWICE, [(2, 9)]), Code.BAD_OBSERVATION),
        (turns(TWICE, [(2, 2)]), Code.BAD_OBSERVATION),
        (turns(TWICE, [(5, 2)]), Code.BAD_OBSERVATION),
        (turns(TWICE, [(2, 4), (4, 5)]), Code.BAD_OBSERVATION),
        (turns(TWICE, [(2, 4), (3, 5)]), Code.BAD_OBSERVATION),
        (turns([7, 3, 5, 8, STOP, 9, 3], [(5, 6), (2, 3)]), Code.BAD_OBSERVATION),
        (turns(TWICE, [(2, 5)], logprob=-0.5), Code.BAD_LOGPROBS),
        (turns(TWICE, [(2, 5)], logprob=float("nan")), Code.BAD_LOGPROBS),
    ],
)
def test_what_is_observed_lies_between_turns(one: Rollout, code: Code | None) -> None:
    for rollouts in ((one, rollout()), (rollout(), one)):
        rejection = check_content(submission(*rollouts), LEASE, MANY)
        assert (None if rejection is None else rejection.code) is code


def test_group_sizes() -> None:
    assert content(rollout()) is Code.WRONG_GROUP_SIZE
    assert content(rollout(), rollout(), rollout()) is Code.WRONG_GROUP_SIZE


@given(
    st.lists(
        st.builds(
            lambda tokens, logprobs, finish: Rollout(
                tokens=tokens, logprobs=logprobs, finish=finish
            ),
            st.one_of(
                st.binary(max_size=24),
                st.lists(st.integers(0, 60), max_size=5).map(pack_tokens),
            ),
            st.one_of(
                st.binary(max_size=24),
                st.lists(st.floats(width=32), max_size=5).map(pack_logprobs),
            ),
            st.sampled_from(["stop", "length"]),
        ),
        min_size=2,
        max_size=2,
    )
)
def test_whatever_passes_is_fit_to_train_on(rollouts: list[Rollout]) -> None:
    if content(*rollouts) is not None:
        return
    for one in rollouts:
        tokens = np.frombuffer(one.tokens, "<u4").tolist()
        logprobs = np.frombuffer(one.logprobs, "<f4")
        assert 1 <= len(tokens) == len(logprobs) <= 4
        assert max(tokens) < 50
        assert np.isfinite(logprobs).all()
        stops = [token in SAMPLING.stop for token in tokens]
        assert not any(stops[:-1])
        assert stops[-1] == (one.finish == "stop")
        assert stops[-1] or len(tokens) == 4


def test_no_sampled_token_lies_below_the_lowest_logprob() -> None:
    """Against the worst policy there is: one token as likely as float32 can say."""
    rng = np.random.default_rng(0)
    for temperature in (0.5, 1.0, 3.0):
        sampling = Sampling(temperature=temperature, max_new_tokens=1, stop=(STOP,))
        logits = rng.normal(size=(2000, 64)) * 8
        noise = gumbel_numpy(row_keys([(i, 0, 0) for i in range(2000)]), 64)
        picked = (logits / temperature + noise).argmax(-1)
        top = logits.max(-1)
        total = top + np.log(np.exp(logits - top[:, None]).sum(-1))
        logprobs = logits[np.arange(2000), picked] - total
        assert logprobs.min() > lowest_logprob(sampling, 64)


def test_audits() -> None:
    def verdict(margin: float, difference: float) -> Code | None:
        evidence = Audited(
            max_margin=margin, max_logprob_difference=difference, mismatches=1, tokens=9
        )
        rejection = check_audit(evidence, max_margin=0.02, max_logprob_difference=0.02)
        return None if rejection is None else rejection.code

    assert verdict(0.01, 0.01) is None
    assert verdict(0.03, 0.01) is Code.AUDIT_MARGIN
    assert verdict(0.01, 0.03) is Code.AUDIT_LOGPROB
    assert verdict(float("nan"), 0.01) is Code.AUDIT_MARGIN
    assert verdict(0.01, float("nan")) is Code.AUDIT_LOGPROB


def test_an_opened_envelope_holds_the_submission() -> None:
    opened = check_envelope(seal(NODE, submission()), run_id="run", node=NODE.public_key)
    assert isinstance(opened, Opened)
    assert opened.message == submission()
