"""The hub's signed statements of credit, as files: made, read and checked without a network.

Promises: what is returned was signed by the hub that it names. The file is text that can be mailed,
and anyone can check it: `echo-node credit verify`.
"""

from __future__ import annotations

import base64
import binascii
import textwrap
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from echo_node.paths import NodeFolder
from echo_p2p.envelope import open_envelope
from echo_p2p.errors import ConfigError, WireError
from echo_p2p.identity import peer_id_of
from echo_p2p.wire import Credit

MAX_FILE_BYTES = 16_384
_FIRST, _LAST = "-----BEGIN ECHO-P2P CREDIT-----", "-----END ECHO-P2P CREDIT-----"


@dataclass(frozen=True)
class Statement:
    """A statement whose signature holds; `hub` is the peer id of the key that made it."""

    credit: Credit
    hub: str


def render(envelope: bytes, statement: Statement) -> str:
    """The statement as a file: a few lines for people, then the signed bytes."""
    credit = statement.credit
    day = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(credit.at))
    told = (
        f"{credit.tokens} tokens in {credit.rollouts} rollouts for run {credit.run_id}, "
        f"by node {peer_id_of(credit.node)}, until {day}, says hub {statement.hub}."
    )
    block = textwrap.wrap(base64.b64encode(envelope).decode(), 72)
    return "\n".join([*textwrap.wrap(told, 72), _FIRST, *block, _LAST]) + "\n"


def read_statement(path: Path) -> Statement:
    """The statement in a file, from anywhere; ConfigError if it is none, or its signature false."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_FILE_BYTES + 1).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}.") from error
    begin, end = text.find(_FIRST), text.find(_LAST)
    if len(text) > MAX_FILE_BYTES or not 0 <= begin < end:
        raise ConfigError(f"{path} holds no statement of credit.")
    try:
        envelope = base64.b64decode("".join(text[begin + len(_FIRST) : end].split()), validate=True)
        return open_statement(envelope)
    except (binascii.Error, WireError) as error:
        raise ConfigError(f"the statement in {path} is false: {error}") from error


def open_statement(envelope: bytes, *, hub: bytes | None = None) -> Statement:
    """Verify a statement; WireError unless it is one, signed by `hub` if that is given."""
    opened = open_envelope(envelope, Credit, key=hub)
    return Statement(opened.message, opened.peer_id)


def kept_statements(folder: NodeFolder) -> Iterator[tuple[Path, Statement]]:
    """The statements in the data folder, by run."""
    if folder.credits.is_dir():
        for path in sorted(folder.credits.glob("*.txt")):
            yield path, read_statement(path)


def checked(path: Path, trusted: str | None) -> Statement:
    """For `credit verify`: the statement, by the hub with peer id `trusted` if that is given."""
    statement = read_statement(path)
    if trusted is not None and statement.hub != trusted:
        raise ConfigError(
            f"{path} was signed by hub {statement.hub}, not by {trusted}.",
            fix="Anyone can sign one with a key of their own: ask the run for its hub's id.",
        )
    return statement
