"""Exported keys: they open with their passphrase alone, and say truly whose they are."""

from __future__ import annotations

import json

import pytest

from echo_p2p.errors import IdentityError
from echo_p2p.identity import Identity
from echo_p2p.keyfile import lock, unlock

PASSPHRASE = "correct horse battery"


@pytest.fixture(scope="module")
def identity() -> Identity:
    return Identity.create()


@pytest.fixture(scope="module")
def file(identity: Identity) -> bytes:
    return lock(identity, "person", PASSPHRASE)


def test_a_key_comes_back(identity: Identity, file: bytes) -> None:
    assert unlock(file, PASSPHRASE, source="it") == (identity, "person")
    assert identity.seed not in file
    assert json.loads(file)["peer_id"] == identity.peer_id


def test_two_exports_share_nothing(identity: Identity, file: bytes) -> None:
    first, second = json.loads(file), json.loads(lock(identity, "person", PASSPHRASE))
    assert all(first[field] != second[field] for field in ("salt", "nonce", "sealed"))


def test_another_passphrase_opens_nothing(file: bytes) -> None:
    with pytest.raises(IdentityError, match="does not open it"):
        unlock(file, PASSPHRASE + " ", source="it")


@pytest.mark.parametrize(
    ("field", "value"),
    [("kind", "machine"), ("peer_id", Identity.from_seed(bytes(32)).peer_id)],
)
def test_what_stands_beside_the_key_is_authenticated(file: bytes, field: str, value: str) -> None:
    changed = json.dumps({**json.loads(file), field: value}).encode()
    with pytest.raises(IdentityError, match="damaged"):
        unlock(changed, PASSPHRASE, source="it")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda file: b"",
        lambda file: b"[]",
        lambda file: file[:-20],
        lambda file: file + b" " * 5000,
        lambda file: json.dumps({**json.loads(file), "more": 1}).encode(),
        lambda file: json.dumps({**json.loads(file), "sealed": ""}).encode(),
        lambda file: json.dumps({**json.loads(file), "log_n": 24, "r": 64}).encode(),
        lambda file: b"\xff" + file,
    ],
)
def test_what_is_no_export_is_refused(file: bytes, spoil) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(IdentityError):
        unlock(spoil(file), PASSPHRASE, source="it")


def test_a_short_passphrase_is_refused(identity: Identity) -> None:
    with pytest.raises(IdentityError, match="protects nothing"):
        lock(identity, "machine", "secret")
