"""The identity of a directory peer that others know by its address.

A bootstrap file names directory peers by multiaddr, peer id included, so a peer that is named in
one keeps its key in a file. Peers that only look things up have a new key each time.
"""

from __future__ import annotations

from pathlib import Path

from echo_p2p.identity import Identity


def ensure_directory_identity(path: Path) -> str:
    """Peer id of the directory key at `path`; the key is made on first use (PEM, mode 0600)."""
    return Identity.load_or_create(path).peer_id


def libp2p_private_key(identity: Identity) -> bytes:
    """The key as go-libp2p reads it. A secret.

    It is the protobuf `PrivateKey{Type = Ed25519 (1), Data = seed + public key}` (libp2p specs,
    peer-ids.md), written out because protobuf classes of libp2p and hivemind clash in one process.
    """
    data = identity.seed + identity.public_key
    return bytes([0x08, 0x01, 0x12, len(data)]) + data
