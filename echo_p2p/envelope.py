"""Envelopes: exact bytes, who signed them, and what for.

Invariants: what is verified is the byte string that was signed, never a re-serialisation of it; the
signature covers the protocol version and the message's kind (domain separation), so a signature
made for one purpose is false for every other; nothing in an envelope is looked at before its
signature holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from echo_p2p import PROTOCOL
from echo_p2p.errors import EnvelopeError, SignatureError
from echo_p2p.identity import Identity, peer_id_of, verify
from echo_p2p.wire import MAX_SIGNED_BYTES, Bytes32, Bytes64, Signed, decode, encode

M = TypeVar("M", bound=Signed)

_OVERHEAD = 256


class _Envelope(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    protocol: int
    kind: str
    key: Bytes32
    payload: bytes
    signature: Bytes64


@dataclass(frozen=True)
class Opened(Generic[M]):
    """An envelope whose signature holds: its message, signer, and the bytes that were signed."""

    message: M
    key: bytes
    payload: bytes

    @property
    def peer_id(self) -> str:
        return peer_id_of(self.key)


def _signed_bytes(kind: str, payload: bytes) -> bytes:
    return b"echo-p2p/%d/%s\x00" % (PROTOCOL, kind.encode()) + payload


def seal(identity: Identity, message: Signed) -> bytes:
    """Serialise and sign a message once; the result is what travels and what is stored.

    EnvelopeError if the message is larger than others would accept.
    """
    kind = type(message).__name__
    payload = encode(message)
    _check_size(type(message), len(payload))
    signature = identity.sign(_signed_bytes(kind, payload))
    return encode(_Envelope(PROTOCOL, kind, identity.public_key, payload, signature))


def open_envelope(data: bytes, kind: type[M], *, key: bytes | None = None) -> Opened[M]:
    """Verify an envelope and decode the message in it.

    Args:
        data: the envelope's bytes, from anywhere.
        kind: the message type that is acceptable here.
        key: the only signer acceptable here (raw public key); None accepts any.

    Raises:
        EnvelopeError: not an envelope, another protocol version, another kind.
        SignatureError: the signature is false or by another key.
        WireError: signed, but not a valid message of that kind.
    """
    _check_size(kind, len(data) - _OVERHEAD)
    try:
        envelope = msgspec.msgpack.decode(data, type=_Envelope)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise EnvelopeError(f"not an envelope: {error}.") from error
    if envelope.protocol != PROTOCOL:
        raise EnvelopeError(
            f"an envelope of protocol {envelope.protocol}; this program speaks {PROTOCOL}.",
            fix="Upgrade the older of the two programs.",
        )
    if envelope.kind != kind.__name__:
        raise EnvelopeError(f"an envelope with a {envelope.kind[:40]!r}, not a {kind.__name__}.")
    if key is not None and envelope.key != key:
        raise SignatureError(
            f"{kind.__name__} is signed by {peer_id_of(envelope.key)}, not by {peer_id_of(key)}."
        )
    if not verify(envelope.key, envelope.signature, _signed_bytes(envelope.kind, envelope.payload)):
        raise SignatureError(f"the signature of this {kind.__name__} is false.")
    _check_size(kind, len(envelope.payload))
    return Opened(decode(envelope.payload, kind), envelope.key, envelope.payload)


def _check_size(kind: type[Signed], size: int) -> None:
    limit = MAX_SIGNED_BYTES[kind]
    if size > limit:
        raise EnvelopeError(f"a {kind.__name__} of {size} bytes; it may have {limit}.")
