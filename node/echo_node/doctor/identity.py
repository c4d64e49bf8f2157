"""The key: there, readable by its owner alone, and whole."""

from __future__ import annotations

from pathlib import Path

from echo_node.doctor.findings import Finding
from echo_node.doctor.situation import Check, Situation
from echo_p2p.errors import IdentityError
from echo_p2p.identity import Identity

NAME = "identity"


def gather(path: Path) -> Identity | IdentityError | None:
    """None: there is no key yet."""
    if not path.exists():
        return None
    try:
        return Identity.load(path)
    except IdentityError as error:
        return error


def judge(found: Identity | IdentityError | None, path: Path) -> list[Finding]:
    if found is None:
        said = "no key yet: the first `echo-node join` makes one."
        return [Finding(check=NAME, severity="note", said=said)]
    if isinstance(found, IdentityError):
        fix = found.fix or f"Restore {path} from a backup, or move it away to get a new identity."
        return [Finding(check=NAME, severity="error", said=found.message, fix=fix)]
    return [Finding(check=NAME, severity="ok", said=f"this node is {found.peer_id}.")]


async def _run(situation: Situation) -> list[Finding]:
    path = situation.question.folder.identity
    return judge(gather(path), path)


CHECK = Check(NAME, "Identity", _run)
