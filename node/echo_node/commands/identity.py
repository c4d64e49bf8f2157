"""`echo-node identity ...`: this machine's key, and the key of the person whose machine it is."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from echo_node.paths import NodeFolder
from echo_node.people import read_voucher, vouch, vouched_for, write_voucher
from echo_p2p.errors import IdentityError
from echo_p2p.files import write_whole
from echo_p2p.identity import Identity, peer_id_of
from echo_p2p.keyfile import Kind, lock, unlock


def show(folder: NodeFolder) -> dict[str, Any]:
    """Whose this machine is; its key is made on first use."""
    identity = Identity.load_or_create(folder.identity)
    vouched = vouched_for(folder, identity.peer_id)
    return {
        "node": identity.peer_id,
        "key": str(folder.identity),
        "person": None if vouched is None else peer_id_of(vouched.person),
        "name": "" if vouched is None else vouched.name,
        "exported": folder.exported.exists(),
    }


def name_person(folder: NodeFolder, name: str) -> dict[str, Any]:
    """Put this machine under a person's key and name; the key is made on first use."""
    identity = Identity.load_or_create(folder.identity)
    person = Identity.load_or_create(folder.person)
    write_voucher(folder, vouch(person, identity.public_key, name, now=time.time()))
    return show(folder)


def export_key(folder: NodeFolder, out: Path, kind: Kind, passphrase: str) -> str:
    """Write a key to a new file, under a passphrase; its peer id."""
    if kind == "person" and not folder.person.exists():
        raise IdentityError(
            "there is no person's key on this machine.",
            fix="Make one: echo-node identity person --name NAME",
        )
    path = folder.person if kind == "person" else folder.identity
    if kind == "machine" and not path.exists():
        raise IdentityError("this machine has no key yet.", fix="It gets one when it joins.")
    if out.exists():
        raise IdentityError(f"{out} exists already.", fix="Name a new file.")
    identity = Identity.load(path)
    sealed = lock(identity, kind, passphrase)
    try:
        write_whole(out, sealed)
        if kind == "machine":
            write_whole(folder.exported, b"")
    except OSError as error:
        raise IdentityError(f"cannot write {out}: {error.strerror}.") from error
    return identity.peer_id


def import_key(folder: NodeFolder, file: Path, passphrase: str) -> tuple[str, Kind]:
    """Take a key from an exported file into the data folder; its peer id and kind.

    IdentityError if there is another key of that kind already: keys are never overwritten. A
    person's key vouches for this machine at once, under the name it has here, if any.
    """
    try:
        data = file.read_bytes()
    except OSError as error:
        raise IdentityError(f"cannot read {file}: {error.strerror}.") from error
    identity, kind = unlock(data, passphrase, source=str(file))
    path = folder.person if kind == "person" else folder.identity
    if not path.exists():
        identity.save(path)
    elif Identity.load(path) != identity:
        raise IdentityError(
            f"there is another key in {path}.",
            fix="Export that one first, move its file away, and import again.",
        )
    if kind == "machine":
        write_whole(folder.exported, b"")
    return identity.peer_id, kind


def known_name(folder: NodeFolder) -> str:
    """What this machine's person goes by."""
    vouched = read_voucher(folder)
    return "" if vouched is None else vouched.name
