"""What this machine gave: the hub's signed statements, fetched while it works, and kept.

Promises: a statement is kept only if the hub of the bootstrap file signed it, for this node and
this run; a kept one is replaced whole by a newer one; a hub that gives none (an older one) is no
trouble.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import trio

from echo_node.events import Credited, Event, Note
from echo_node.hub import Hub
from echo_node.notice import Notice
from echo_node.outbox import Outbox
from echo_node.paths import NodeFolder
from echo_node.people import Vouched
from echo_node.statements import Statement, render
from echo_p2p.errors import PeerRefusedError, WireError
from echo_p2p.files import write_whole

PAUSE_S = 30.0
"""Between two statements."""

log = logging.getLogger(__name__)


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
