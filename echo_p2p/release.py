"""Signed releases of this program: whose are installed, and which. Pure but for the packaged file.

Promises: a release counts only if the key that this copy was shipped with signed it; versions only
rise; one that no longer speaks the network's protocol is passed over.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from echo_p2p.envelope import open_envelope, seal
from echo_p2p.errors import ConfigError, IdentityError, ReleaseError, WireError
from echo_p2p.identity import Identity, public_key_of
from echo_p2p.toml import Strict, parse_toml
from echo_p2p.wire import Release

FILE_NAME = "release.toml"
ENVELOPE = "release.bin"
"""Name of the signed release in its folder; the wheel lies beside it."""


class Trust(Strict):
    """Who makes this program's releases."""

    key: str
    """Public key, as a peer id; empty is nobody."""
    source: str
    """Where the newest release lies: an address that ends in a folder."""


def shipped() -> Trust:
    """What this copy was made with; ReleaseError if it was made without a release key."""
    file = resources.files("echo_p2p") / FILE_NAME
    trust = parse_toml(file.read_text(encoding="utf-8"), Trust, source=FILE_NAME)
    if not trust.key or not trust.source:
        raise ReleaseError(
            "this copy of the program was made without a release key, so no release can be "
            "checked, and none is installed by itself.",
            fix="Leave --auto-update out.",
        )
    return trust


def open_release(envelope: bytes, trust: Trust) -> Release:
    """The release in an envelope; ReleaseError unless the trusted key signed it."""
    try:
        return open_envelope(envelope, Release, key=public_key_of(trust.key)).message
    except (WireError, IdentityError) as error:
        raise ReleaseError(f"the release at {trust.source} is refused: {error.message}") from error


def sign_release(release: Release, key: Identity) -> bytes:
    """For who makes releases."""
    return seal(key, release)


def is_newer(theirs: str, ours: str) -> bool:
    """Whether a version is above another; both as 1.2.3."""
    return _parts(theirs) > _parts(ours)


def _parts(version: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in version.split("."))
    except ValueError as error:
        raise ConfigError(f"{version!r} is not a version like 1.2.3.") from error


def is_wanted(release: Release, *, ours: str, protocol: int | None) -> bool:
    """Whether to install it.

    Args:
        ours: the version that runs.
        protocol: what the network speaks; None if ours does not speak it any more.
    """
    speaks = protocol is None or release.protocol <= protocol
    return speaks and is_newer(release.version, ours)


def wheel_path(folder: Path, release: Release) -> Path:
    """Where its wheel is put."""
    return folder / release.wheel
