"""A key to carry away: an identity under a passphrase, in a small text file.

Promises: the key comes out only with the passphrase, unchanged or not at all; what stands beside it
(whose key it is) is authenticated with it. The passphrase is stretched by scrypt (RFC 7914), the
key sealed by ChaCha20-Poly1305 (RFC 8439). A file cannot ask for more than `_MOST_MEMORY` bytes to
be opened.
"""

from __future__ import annotations

import secrets
from typing import Annotated, Literal

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt
from msgspec import Meta

from echo_p2p.errors import IdentityError
from echo_p2p.identity import KEY_BYTES, Identity

Kind = Literal["machine", "person"]

MIN_PASSPHRASE = 8
MAX_FILE_BYTES = 4096
_LOG_N, _R, _P = 17, 8, 1  # 128 MiB and some tenths of a second
_MOST_MEMORY = 1 << 30
_DOMAIN = b"echo-p2p/key-file/1\x00"


class _KeyFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: Literal["echo-p2p key 1"]
    kind: Kind
    peer_id: Annotated[str, Meta(max_length=80)]
    log_n: Annotated[int, Meta(ge=10, le=24)]
    r: Annotated[int, Meta(ge=1, le=64)]
    p: Annotated[int, Meta(ge=1, le=16)]
    salt: Annotated[bytes, Meta(min_length=16, max_length=16)]
    nonce: Annotated[bytes, Meta(min_length=12, max_length=12)]
    sealed: Annotated[bytes, Meta(min_length=48, max_length=48)]

    def key(self, passphrase: str) -> bytes:
        kdf = Scrypt(self.salt, length=KEY_BYTES, n=1 << self.log_n, r=self.r, p=self.p)
        return kdf.derive(passphrase.encode())

    @property
    def beside(self) -> bytes:
        """What is authenticated with the key: which kind it is of, and whose."""
        return _DOMAIN + f"{self.kind}/{self.peer_id}".encode()


def lock(identity: Identity, kind: Kind, passphrase: str) -> bytes:
    """The identity as a file; IdentityError for a passphrase under `MIN_PASSPHRASE` characters."""
    if len(passphrase) < MIN_PASSPHRASE:
        raise IdentityError(
            f"a passphrase of {len(passphrase)} characters protects nothing.",
            fix=f"Choose one of {MIN_PASSPHRASE} at least; four random words are good.",
        )
    file = _KeyFile(
        "echo-p2p key 1",
        kind,
        identity.peer_id,
        _LOG_N,
        _R,
        _P,
        secrets.token_bytes(16),
        secrets.token_bytes(12),
        bytes(48),
    )
    cipher = ChaCha20Poly1305(file.key(passphrase))
    sealed = cipher.encrypt(file.nonce, identity.seed, file.beside)
    whole = msgspec.json.encode(msgspec.structs.replace(file, sealed=sealed))
    return msgspec.json.format(whole, indent=2) + b"\n"


def unlock(data: bytes, passphrase: str, *, source: str) -> tuple[Identity, Kind]:
    """The identity in a file made by `lock`, and what kind it is; IdentityError if it is none."""
    if len(data) > MAX_FILE_BYTES:
        raise IdentityError(f"{source} is no exported key: it is too large.")
    try:
        file = msgspec.json.decode(data, type=_KeyFile)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise IdentityError(
            f"{source} is no exported key.", fix="Make one with: echo-node identity export FILE"
        ) from error
    if 128 * file.r * (1 << file.log_n) > _MOST_MEMORY:
        raise IdentityError(f"{source} asks for more than 1 GiB of memory to be opened.")
    try:
        seed = ChaCha20Poly1305(file.key(passphrase)).decrypt(file.nonce, file.sealed, file.beside)
    except InvalidTag as error:
        raise IdentityError(
            f"the passphrase does not open {source}, or the file was damaged.",
            fix="Try again; without the passphrase nobody can open it, neither can we.",
        ) from error
    identity = Identity.from_seed(seed)
    if identity.peer_id != file.peer_id:
        raise IdentityError(f"{source} names another identity than it holds.")
    return identity, file.kind
