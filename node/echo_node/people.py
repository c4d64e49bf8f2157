"""Whose machine this is: a person's key, and its word for this machine's.

A person with several machines has one key of their own, carried from machine to machine under a
passphrase; on each it signs a `Voucher` for that machine's key. The hub then adds up what they
give. Without a person's key a machine stands for itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from echo_node.paths import NodeFolder
from echo_p2p.envelope import open_envelope, seal
from echo_p2p.errors import EchoError, IdentityError, WireError
from echo_p2p.files import write_whole
from echo_p2p.identity import Identity, public_key_of
from echo_p2p.wire import Voucher, decode, encode


@dataclass(frozen=True)
class Vouched:
    """A voucher for a machine, verified."""

    envelope: bytes
    person: bytes
    name: str


def vouch(person: Identity, machine: bytes, name: str, *, now: float) -> bytes:
    """The person's voucher for a machine's public key; IdentityError for an impossible name."""
    voucher = Voucher(machine=machine, name=name.strip(), at=now)
    try:
        decode(encode(voucher), Voucher)  # the hub's own judgement of the name
    except WireError as error:
        raise IdentityError(
            f"{name!r} cannot be a name.", fix="At most 40 characters, all of them visible."
        ) from error
    return seal(person, voucher)


def read_voucher(folder: NodeFolder) -> Vouched | None:
    """The voucher for this machine's key, None if there is none; IdentityError for a false one."""
    if not folder.voucher.exists():
        return None
    try:
        envelope = folder.voucher.read_bytes()
        opened = open_envelope(envelope, Voucher)
    except (OSError, EchoError) as error:
        raise IdentityError(
            f"{folder.voucher} is no voucher: {error}",
            fix="Make it again: echo-node identity person --name NAME",
        ) from error
    return Vouched(envelope, opened.key, opened.message.name)


def vouched_for(folder: NodeFolder, machine: str) -> Vouched | None:
    """The voucher, if it is for the machine with this peer id."""
    found = read_voucher(folder)
    if found is None:
        return None
    voucher = open_envelope(found.envelope, Voucher).message
    return found if voucher.machine == public_key_of(machine) else None


def write_voucher(folder: NodeFolder, envelope: bytes) -> None:
    """Put a voucher in the data folder, whole or not at all."""
    try:
        write_whole(folder.voucher, envelope)
    except OSError as error:
        raise IdentityError(f"cannot write {folder.voucher}: {error.strerror}.") from error
