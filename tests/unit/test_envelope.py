"""Envelopes: what is signed is what is read, by whom it must be, for what it was meant."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from message_strategies import SIGNED, damaged, messages

from echo_p2p import PROTOCOL
from echo_p2p.envelope import Opened, open_envelope, seal
from echo_p2p.errors import EnvelopeError, SignatureError, WireError
from echo_p2p.identity import Identity
from echo_p2p.wire import (
    MAX_SIGNED_BYTES,
    MAX_TOKENS,
    Receipt,
    Rollout,
    RunRecord,
    Signed,
    Submission,
    encode,
)

HUB = Identity.from_seed(bytes(range(32)))
OTHER = Identity.from_seed(bytes(32))
RECEIPT = Receipt(
    run_id="demo", lease_id=bytes(16), accepted=True, code="ok", sentence="Thanks.", at=1.0
)


def parts(envelope: bytes) -> list[Any]:
    """Protocol, kind, key, payload, signature."""
    fields: list[Any] = msgspec.msgpack.decode(envelope)
    return fields


def envelope_of(fields: list[Any]) -> bytes:
    return msgspec.msgpack.encode(fields)


def signed(payload: bytes, kind: str = "Receipt", protocol: int = PROTOCOL) -> bytes:
    """An envelope made by hand, its signature as the specification says."""
    signature = HUB.sign(b"echo-p2p/%d/%s\x00" % (protocol, kind.encode()) + payload)
    return envelope_of([protocol, kind, HUB.public_key, payload, signature])


@pytest.mark.parametrize("kind", SIGNED, ids=lambda kind: kind.__name__)
@given(data=st.data())
@settings(max_examples=10)
def test_a_message_comes_back_with_its_signer(kind: type[Signed], data: st.DataObject) -> None:
    message = data.draw(messages(kind))
    sealed = seal(HUB, message)
    opened = open_envelope(sealed, kind, key=HUB.public_key)
    assert opened == Opened(message, HUB.public_key, encode(message))
    assert opened.peer_id == HUB.peer_id
    assert open_envelope(sealed, kind) == opened
    assert sealed == signed(encode(message), kind.__name__), "as the specification says"


def test_every_signed_message_has_a_size_limit() -> None:
    assert set(MAX_SIGNED_BYTES) == set(SIGNED)


def test_another_key_is_refused_where_one_is_required() -> None:
    with pytest.raises(SignatureError, match=f"by {OTHER.peer_id}, not by {HUB.peer_id}"):
        open_envelope(seal(OTHER, RECEIPT), Receipt, key=HUB.public_key)


def test_a_key_put_in_the_place_of_another_is_refused() -> None:
    fields = parts(seal(OTHER, RECEIPT))
    fields[2] = HUB.public_key
    with pytest.raises(SignatureError, match="false"):
        open_envelope(envelope_of(fields), Receipt, key=HUB.public_key)


@given(st.integers(0, len(seal(HUB, RECEIPT)) * 8 - 1))
def test_no_bit_can_be_changed(bit: int) -> None:
    envelope = bytearray(seal(HUB, RECEIPT))
    envelope[bit // 8] ^= 1 << bit % 8
    with pytest.raises(EnvelopeError):
        open_envelope(bytes(envelope), Receipt)


@pytest.mark.parametrize("kind", SIGNED, ids=lambda kind: kind.__name__)
@given(data=st.data())
@settings(max_examples=50)
def test_damaged_envelopes_are_refused(kind: type[Signed], data: st.DataObject) -> None:
    message = data.draw(messages(kind))
    sealed = seal(HUB, message)
    broken = data.draw(damaged(sealed))
    try:
        opened = open_envelope(broken, kind)
    except WireError:
        return
    # the damage undid itself, or lies in how the envelope is packed and not in what was signed
    assert opened == open_envelope(sealed, kind)


@given(st.binary(max_size=300), st.sampled_from(SIGNED))
def test_random_bytes_are_refused(data: bytes, kind: type[Signed]) -> None:
    with pytest.raises(EnvelopeError):
        open_envelope(data, kind)


@given(st.binary(max_size=100))
def test_what_is_signed_and_no_message_is_a_wire_error(payload: bytes) -> None:
    with pytest.raises(WireError, match="no Receipt"):
        open_envelope(signed(payload), Receipt, key=HUB.public_key)


def test_a_signature_holds_for_one_kind_of_message_only() -> None:
    record = RunRecord(run_id="demo", version=1, addresses=(), adapter=None, expires_at=1.0)
    sealed = seal(HUB, record)
    with pytest.raises(EnvelopeError, match="an envelope with a 'RunRecord', not a Receipt"):
        open_envelope(sealed, Receipt)
    relabelled = parts(sealed)
    relabelled[1] = "Receipt"
    with pytest.raises(SignatureError, match="the signature of this Receipt is false"):
        open_envelope(envelope_of(relabelled), Receipt)
    bare = parts(sealed)
    bare[4] = HUB.sign(bare[3])
    with pytest.raises(SignatureError, match="false"):
        open_envelope(envelope_of(bare), RunRecord)


@pytest.mark.parametrize("protocol", [0, PROTOCOL + 1, 2**40])
def test_another_protocol_version_says_so(protocol: int) -> None:
    with pytest.raises(EnvelopeError, match=rf"of protocol {protocol}; .* speaks {PROTOCOL}\. Up"):
        open_envelope(signed(encode(RECEIPT), protocol=protocol), Receipt)
    relabelled = parts(signed(encode(RECEIPT), protocol=protocol))
    relabelled[0] = PROTOCOL
    with pytest.raises(SignatureError):
        open_envelope(envelope_of(relabelled), Receipt)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (0, "1"), (0, None), (0, 1.5), (1, 5), (1, b"Receipt"), (2, bytes(31)), (2, bytes(33)),
        (2, "k" * 32), (3, "text"), (3, None), (4, bytes(63)), (4, bytes(65)), (4, None),
    ],
)  # fmt: skip
def test_a_part_of_the_wrong_type_or_size_is_refused(place: int, value: Any) -> None:
    fields = parts(seal(HUB, RECEIPT))
    fields[place] = value
    with pytest.raises(EnvelopeError, match="not an envelope"):
        open_envelope(envelope_of(fields), Receipt)


def test_an_envelope_has_five_parts() -> None:
    fields = parts(seal(HUB, RECEIPT))
    for wrong in (fields[:4], [*fields, b""], fields[::-1], [], {}, fields[3], None):
        with pytest.raises(EnvelopeError, match="not an envelope"):
            open_envelope(msgspec.msgpack.encode(wrong), Receipt)


def test_the_bytes_that_were_signed_are_kept_however_they_were_packed() -> None:
    """Another encoder may order fields and size numbers otherwise; nobody packs them again."""
    fields = msgspec.msgpack.decode(encode(RECEIPT))
    payload = msgspec.msgpack.encode(dict(reversed(fields.items())))
    assert payload != encode(RECEIPT)
    opened = open_envelope(signed(payload), Receipt, key=HUB.public_key)
    assert opened.message == RECEIPT
    assert opened.payload == payload


def test_size_limits_hold_at_both_ends() -> None:
    answer = Rollout(tokens=bytes(4 * MAX_TOKENS), logprobs=bytes(4 * MAX_TOKENS), finish="length")
    submission = Submission(run_id="demo", lease_id=bytes(16), version=0, rollouts=(answer,) * 64)
    with pytest.raises(EnvelopeError, match=r"a Submission of \d+ bytes; it may have 8387584"):
        seal(HUB, submission)
    for size in (MAX_SIGNED_BYTES[Receipt] + 1, MAX_SIGNED_BYTES[Receipt] + 10_000):
        with pytest.raises(EnvelopeError, match="a Receipt of"):
            open_envelope(signed(bytes(size)), Receipt)
    full = msgspec.structs.replace(submission, rollouts=(answer,) * 31)
    assert open_envelope(seal(HUB, full), Submission).message == full
