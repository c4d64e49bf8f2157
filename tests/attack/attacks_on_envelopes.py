"""Envelopes that were changed, forged, or never any: nothing in them is believed."""

from __future__ import annotations

import secrets
from typing import Any

import msgspec
from attack_registry import forge
from attack_support import RUN_ID, Arena, seal_raw

from echo_hub.rollouts.checks import Code
from echo_p2p import PROTOCOL
from echo_p2p.envelope import seal
from echo_p2p.wire import MIB, RunRecord, Submission


def reopened(envelope: bytes) -> list[Any]:
    parts: list[Any] = msgspec.msgpack.decode(envelope)
    assert len(parts) == 5  # protocol, kind, key, payload, signature
    return parts


def with_part(envelope: bytes, number: int, value: object) -> bytes:
    parts = reopened(envelope)
    parts[number] = value
    return msgspec.msgpack.encode(parts)


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def token_changed_after_signing(envelope: bytes, _: Arena) -> bytes:
    payload: bytes = reopened(envelope)[3]
    tokens = msgspec.msgpack.decode(payload, type=Submission).rollouts[0].tokens
    return with_part(envelope, 3, flipped(payload, payload.index(tokens)))


def signature_changed(envelope: bytes, _: Arena) -> bytes:
    return with_part(envelope, 4, flipped(reopened(envelope)[4], 40))


def key_replaced(envelope: bytes, arena: Arena) -> bytes:
    return with_part(envelope, 2, arena.honest.identity.public_key)


def signed_for_something_else(envelope: bytes, arena: Arena) -> bytes:
    """A signature over the same bytes, made for a `Lease`, under the label of a `Submission`."""
    other = seal_raw(arena.attacker.identity, reopened(envelope)[3], kind="Lease")
    return with_part(other, 1, "Submission")


def malformed(name: str, **fields: object) -> None:
    """Signed by the node, but with fields that no `Submission` could be made with."""

    def spoil(envelope: bytes, arena: Arena) -> bytes:
        payload = {**msgspec.msgpack.decode(reopened(envelope)[3]), **fields}
        return seal_raw(arena.attacker.identity, msgspec.msgpack.encode(payload))

    forge(name, Code.BAD_ENVELOPE, spoil)


def in_another_kind(envelope: bytes, arena: Arena) -> bytes:
    return seal_raw(arena.attacker.identity, reopened(envelope)[3], kind="RunRecord")


def a_run_record(_: bytes, arena: Arena) -> bytes:
    record = RunRecord(run_id=RUN_ID, version=9, addresses=(), adapter=None, expires_at=1.0)
    return seal(arena.attacker.identity, record)


def of_protocol_to_come(envelope: bytes, arena: Arena) -> bytes:
    return seal_raw(arena.attacker.identity, reopened(envelope)[3], protocol=PROTOCOL + 1)


forge("token changed after signing", Code.BAD_SIGNATURE, token_changed_after_signing)
forge("signature changed", Code.BAD_SIGNATURE, signature_changed)
forge("no signature", Code.BAD_SIGNATURE, lambda good, _: with_part(good, 4, bytes(64)))
forge("key replaced", Code.BAD_SIGNATURE, key_replaced)
forge("signed for something else", Code.BAD_SIGNATURE, signed_for_something_else)
forge("nothing", Code.BAD_ENVELOPE, lambda *_: b"")
forge("garbage", Code.BAD_ENVELOPE, lambda *_: secrets.token_bytes(500))
forge("cut short", Code.BAD_ENVELOPE, lambda good, _: good[:-1])
forge("continued", Code.BAD_ENVELOPE, lambda good, _: good + b"\0")
forge("nested too deeply", Code.BAD_ENVELOPE, lambda *_: b"\x91" * 100_000)
forge("too large", Code.BAD_ENVELOPE, lambda *_: bytes(8 * MIB))
forge("submission labelled as another kind", Code.BAD_ENVELOPE, in_another_kind)
forge("another kind of message", Code.BAD_ENVELOPE, a_run_record)
forge("another protocol version", Code.BAD_ENVELOPE, of_protocol_to_come)

malformed("unknown field", reward=1.0)
malformed("version below zero", version=-1)
malformed("version beyond all", version=2**63)
malformed("lease id too short", lease_id=b"short")
malformed("rollouts of another type", rollouts="none")
malformed("another type's tag", type="Receipt")
