"""What this machine gave: the hub's signed statements, fetched while it works, and kept.

Promises: a statement is kept only if the hub of the bootstrap file signed it, for this node and
this run; a kept one is replaced whole by a newer one; a hub that gives none (an older one) is no
trouble. The file is text that can be mailed, and anyone can check it: `echo-node credit verify`.
"""

from __future__ import annotations

import base64
import binascii
import logging
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import trio

from echo_node.events import Credited, Event, Note
from echo_node.hub import Hub
from echo_node.notice import Notice
from echo_node.outbox import Outbox
from echo_node.paths import NodeFolder
from echo_node.people import Vouched
from echo_p2p.envelope import open_envelope
from echo_p2p.errors import ConfigError, PeerRefusedError, WireError
from echo_p2p.files import write_whole
from echo_p2p.identity import peer_id_of
from echo_p2p.wire import Credit

PAUSE_S = 30.0
"""Between two statements."""
MAX_FILE_BYTES = 16_384
_FIRST, _LAST = "-----BEGIN ECHO-P2P CREDIT-----", "-----END ECHO-P2P CREDIT-----"

log = logging.getLogger(__name__)


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


class CreditKeeper:
    """Of one node in one run: introduces its person to the hub, and keeps what the hub states."""

    def __init__(
        self,
        folder: NodeFolder,
        *,
        node: bytes,
        vouched: Vouched | None,
        outbox: Outbox,
        notice: Notice,
        report: Callable[[Event], None],
    ) -> None:
        self._folder = folder
        self._node = node
        self._vouched = vouched
        self._outbox = outbox
        self._notice = notice
        self._report = report
        self._stated = -1  # accepted groups when the last statement came
        self._reminded = False

    async def follow(self, hub: Hub) -> None:
        """During a session: fetch a statement whenever there is more to state."""
        try:
            if self._vouched is not None:
                await hub.introduce(self._vouched.envelope)
            while True:
                await self._notice.until(lambda: self._outbox.accepted > max(0, self._stated))
                accepted = self._outbox.accepted
                await self._fetch(hub)
                self._stated = accepted
                await trio.sleep(PAUSE_S)
        except PeerRefusedError as error:  # an older hub; work goes on without
            log.warning("the hub states no credit: %s", error.message)

    async def _fetch(self, hub: Hub) -> None:
        envelope, credit = await hub.credit()
        if credit.node != self._node:
            raise WireError("the hub states the credit of another node.")
        statement = Statement(credit, hub.peer_id)
        path = self._folder.credits / f"{credit.run_id}.{hub.peer_id[-8:]}.txt"
        try:
            await trio.to_thread.run_sync(write_whole, path, render(envelope, statement).encode())
        except OSError as error:
            log.warning("cannot keep the statement of credit in %s: %s", path, error)
        self._report(Credited(tokens=credit.tokens, rollouts=credit.rollouts, name=credit.name))
        if credit.tokens and not self._reminded and not self._folder.exported.exists():
            self._reminded = True
            self._report(
                Note(
                    message="Your credit hangs on this machine's key. Keep a copy of it: "
                    "echo-node identity export FILE"
                )
            )


def checked(path: Path, trusted: str | None) -> Statement:
    """For `credit verify`: the statement, by the hub with peer id `trusted` if that is given."""
    statement = read_statement(path)
    if trusted is not None and statement.hub != trusted:
        raise ConfigError(
            f"{path} was signed by hub {statement.hub}, not by {trusted}.",
            fix="Anyone can sign one with a key of their own: ask the run for its hub's id.",
        )
    return statement
