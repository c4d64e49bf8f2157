from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, x25519
from hypothesis import given, settings
from hypothesis import strategies as st
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.peer.id import ID

from echo_p2p.errors import IdentityError
from echo_p2p.identity import Identity, peer_id_of, public_key_of, verify

SEEDS = st.binary(min_size=32, max_size=32)
PKCS8 = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8)


@given(SEEDS)
@settings(max_examples=50)
def test_the_peer_id_is_libp2p_s_for_the_same_key(seed: bytes) -> None:
    identity = Identity.from_seed(seed)
    theirs = create_new_key_pair(seed)
    assert theirs.public_key.to_bytes() == identity.public_key
    assert str(ID.from_pubkey(theirs.public_key)) == identity.peer_id
    assert theirs.private_key.sign(b"message") == identity.sign(b"message")


def test_a_fixed_vector() -> None:
    """RFC 8032, 7.1, test 1; its peer id was computed by go-libp2p's p2pd."""
    seed = "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60"
    identity = Identity.from_seed(bytes.fromhex(seed))
    public = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
    assert identity.public_key.hex() == public
    assert identity.peer_id == "12D3KooWQK1wnefoLrcVHbbnf5tLzbopUd3K3bFAoJpA7YJgL5pV"
    assert identity.sign(b"").hex().startswith("e5564300c360ac729086e2cc806e828a84877f1e")


@given(SEEDS)
def test_peer_id_and_public_key_are_each_other_s(key: bytes) -> None:
    assert public_key_of(peer_id_of(key)) == key


@pytest.mark.parametrize("size", [0, 31, 33])
def test_only_32_bytes_are_a_key_or_a_seed(size: int) -> None:
    with pytest.raises(IdentityError, match=f"this one has {size}"):
        peer_id_of(bytes(size))
    with pytest.raises(IdentityError, match=f"this one has {size}"):
        Identity.from_seed(bytes(size))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0OIl",
        "12D3KooW",
        "QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N",  # of an RSA key
        "é" * 52,
        peer_id_of(bytes(32))[:-1],
        peer_id_of(bytes(32)) + "1",
    ],
)
def test_anything_else_is_no_peer_id(text: str) -> None:
    with pytest.raises(IdentityError, match="peer id"):
        public_key_of(text)


@given(st.text(max_size=60))
def test_any_text_is_a_peer_id_or_an_identity_error(text: str) -> None:
    with suppress(IdentityError):
        assert peer_id_of(public_key_of(text)) == text


@given(SEEDS, st.binary(max_size=100), st.integers(0, 511))
def test_a_signature_holds_for_its_key_and_message_only(
    seed: bytes, message: bytes, bit: int
) -> None:
    identity = Identity.from_seed(seed)
    signature = identity.sign(message)
    assert verify(identity.public_key, signature, message)
    assert not verify(identity.public_key, signature, message + b"\0")
    assert not verify(Identity.create().public_key, signature, message)
    flipped = bytearray(signature)
    flipped[bit // 8] ^= 1 << bit % 8
    assert not verify(identity.public_key, bytes(flipped), message)


@given(st.binary(max_size=70), st.binary(max_size=70), st.binary(max_size=10))
def test_verifying_nonsense_is_false(key: bytes, signature: bytes, message: bytes) -> None:
    assert not verify(key, signature, message)


def test_identities_are_equal_by_key_and_show_no_secret() -> None:
    one, same, other = (Identity.from_seed(bytes([n]) * 32) for n in (1, 1, 2))
    assert one == same
    assert one != other
    assert len({one, same, other}) == 2
    assert repr(one) == f"Identity({one.peer_id})"


@given(SEEDS)
@settings(max_examples=20)
def test_export_and_import(seed: bytes) -> None:
    identity = Identity.from_seed(seed)
    again = Identity.import_(identity.export())
    assert again == identity
    assert again.seed == seed


def _pem(key: ec.EllipticCurvePrivateKey | x25519.X25519PrivateKey) -> bytes:
    return key.private_bytes(*PKCS8, serialization.NoEncryption())


@pytest.mark.parametrize(
    ("pem", "why"),
    [
        (b"", "not an unencrypted PEM"),
        (b"hello", "not an unencrypted PEM"),
        (Identity.from_seed(bytes(32)).export()[:-40], "not an unencrypted PEM"),
        (_pem(ec.generate_private_key(ec.SECP256R1())), "of another kind than Ed25519"),
        (_pem(x25519.X25519PrivateKey.generate()), "of another kind than Ed25519"),
        (
            Identity.from_seed(bytes(32))._private.private_bytes(
                *PKCS8, serialization.BestAvailableEncryption(b"secret")
            ),
            "not an unencrypted PEM",
        ),
    ],
)
def test_anything_but_an_ed25519_key_is_refused(pem: bytes, why: str) -> None:
    with pytest.raises(IdentityError, match=rf"here\.key .*{why}"):
        Identity.import_(pem, source="here.key")


def test_a_saved_key_is_ours_alone_whatever_the_umask(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folders" / "node.key"
    identity = Identity.create()
    before = os.umask(0)
    try:
        identity.save(path)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600
    assert Identity.load(path) == identity
    assert list(path.parent.iterdir()) == [path]


def test_a_key_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "node.key"
    first = Identity.create()
    first.save(path)
    with pytest.raises(IdentityError, match="exists already"):
        Identity.create().save(path)
    assert Identity.load(path) == first
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o610, 0o601, 0o777])
def test_a_key_that_others_may_touch_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "node.key"
    Identity.create().save(path)
    path.chmod(mode)
    with pytest.raises(IdentityError, match=rf"mode {mode:04o}.*chmod 600 {path}"):
        Identity.load(path)
    path.chmod(0o400)
    Identity.load(path)


def test_what_cannot_be_read_or_written_says_so(tmp_path: Path) -> None:
    with pytest.raises(IdentityError, match=r"cannot read the key .*No such file"):
        Identity.load(tmp_path / "none")
    with pytest.raises(IdentityError, match=r"cannot read the key .*directory"):
        Identity.load(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(IdentityError, match="cannot write the key"):
        Identity.create().save(tmp_path / "file" / "node.key")
    with pytest.raises(IdentityError, match="cannot write the key"):
        Identity.load_or_create(tmp_path / "file" / "node.key")


def test_many_first_users_agree_on_one_key(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from echo_p2p.identity import Identity; "
        "sys.stdin.read(); print(Identity.load_or_create(pathlib.Path(sys.argv[1])).peer_id)"
    )
    programs = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path / "node.key")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    for program in programs:
        assert program.stdin is not None
        program.stdin.close()
    found = set()
    for program in programs:
        with program:
            assert program.stdout is not None
            found.add(program.stdout.read())
    assert len(found) == 1
    assert len(list(tmp_path.iterdir())) == 1
