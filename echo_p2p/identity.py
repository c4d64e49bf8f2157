"""Ed25519 identities and the peer ids derived from them.

One key pair is a program's signing key *and* its libp2p key, so a peer id names the same party
whether it is seen on a connection or in an envelope. Key files are PEM (PKCS#8), mode 0600; a file
that others could read is refused, because whoever reads it can be us.
"""

from __future__ import annotations

import os
import stat
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import base58
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from echo_p2p.errors import IdentityError

KEY_BYTES = 32
SIGNATURE_BYTES = 64
# libp2p peer id of an Ed25519 key: identity multihash (0x00, 36 bytes) of the protobuf
# PublicKey{Type = Ed25519 (1), Data = 32 bytes}. libp2p specs, peer-ids.md.
_PEER_ID_PREFIX = bytes([0x00, 0x24, 0x08, 0x01, 0x12, 0x20])


def peer_id_of(public_key: bytes) -> str:
    """libp2p peer id (base58) of a raw 32-byte Ed25519 public key."""
    if len(public_key) != KEY_BYTES:
        raise IdentityError(f"a public key is {KEY_BYTES} bytes, this one has {len(public_key)}.")
    return str(base58.b58encode(_PEER_ID_PREFIX + public_key).decode())


def public_key_of(peer_id: str) -> bytes:
    """Raw public key of an Ed25519 libp2p peer id; IdentityError for any other kind."""
    try:
        raw = bytes(base58.b58decode(peer_id))
    except ValueError as error:
        raise IdentityError(f"{peer_id!r} is not a peer id.") from error
    if len(raw) != len(_PEER_ID_PREFIX) + KEY_BYTES or not raw.startswith(_PEER_ID_PREFIX):
        raise IdentityError(f"{peer_id!r} is not the peer id of an Ed25519 key.")
    return raw[len(_PEER_ID_PREFIX) :]


def verify(public_key: bytes, signature: bytes, message: bytes) -> bool:
    """True if `signature` (64 bytes) over `message` is by `public_key` (raw, 32 bytes)."""
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


@dataclass(frozen=True)
class Identity:
    """A private key, its public key and its peer id."""

    _private: Ed25519PrivateKey = field(compare=False)
    public_key: bytes
    peer_id: str

    def __repr__(self) -> str:
        return f"Identity({self.peer_id})"

    @classmethod
    def _of(cls, private: Ed25519PrivateKey) -> Identity:
        public = private.public_key().public_bytes_raw()
        return cls(private, public, peer_id_of(public))

    @classmethod
    def create(cls) -> Identity:
        """A new identity from the system's random source. Nothing is written."""
        return cls._of(Ed25519PrivateKey.generate())

    @classmethod
    def from_seed(cls, seed: bytes) -> Identity:
        """The identity of a 32-byte private seed."""
        if len(seed) != KEY_BYTES:
            raise IdentityError(f"a private seed is {KEY_BYTES} bytes, this one has {len(seed)}.")
        return cls._of(Ed25519PrivateKey.from_private_bytes(seed))

    @property
    def seed(self) -> bytes:
        """The 32-byte private seed. A secret."""
        return self._private.private_bytes_raw()

    def sign(self, message: bytes) -> bytes:
        """Signature (64 bytes) over exactly these bytes."""
        return self._private.sign(message)

    def export(self) -> bytes:
        """The private key as PEM (PKCS#8). A secret."""
        return self._private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )

    @classmethod
    def import_(cls, pem: bytes, *, source: str = "the key") -> Identity:
        """The identity in a PEM made by `export`; IdentityError if it is anything else."""
        try:
            key = serialization.load_pem_private_key(pem, password=None)
        except (ValueError, TypeError) as error:
            raise IdentityError(
                f"{source} is not an unencrypted PEM private key.",
                fix="Restore it from a backup, or move it away to get a new identity.",
            ) from error
        if not isinstance(key, Ed25519PrivateKey):
            raise IdentityError(f"{source} holds a key of another kind than Ed25519.")
        return cls._of(key)

    def save(self, path: Path) -> None:
        """Write the key to a new file of mode 0600, whole or not at all; never overwrites."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(self.export())
                    file.flush()
                    os.fsync(file.fileno())
                _link(Path(name), path)
            finally:
                Path(name).unlink()
        except OSError as error:
            raise IdentityError(f"cannot write the key {path}: {error.strerror}.") from error

    @classmethod
    def load(cls, path: Path) -> Identity:
        """Read a key file; refuses one that group or others may read."""
        try:
            mode = path.stat().st_mode
            pem = path.read_bytes()
        except OSError as error:
            raise IdentityError(f"cannot read the key {path}: {error.strerror}.") from error
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise IdentityError(
                f"{path} can be read by others (mode {stat.S_IMODE(mode):04o}).",
                fix=f"Run: chmod 600 {path}",
            )
        return cls.import_(pem, source=str(path))

    @classmethod
    def load_or_create(cls, path: Path) -> Identity:
        """The identity at `path`, made on first use; of several first users, one makes it."""
        if not path.exists():
            try:
                cls.create().save(path)
            except IdentityError:
                if not path.exists():
                    raise
        return cls.load(path)


def _link(new: Path, path: Path) -> None:
    try:
        path.hardlink_to(new)
    except FileExistsError as error:
        raise IdentityError(
            f"{path} exists already.", fix="Move it away first; keys are never overwritten."
        ) from error
