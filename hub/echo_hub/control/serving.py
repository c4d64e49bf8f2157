"""Does what operators want of a run, in the hub that serves it.

What needs the learner waits for the end of the update in hand (`orders`); the rest is done at once.
"""

from __future__ import annotations

import trio

from echo_hub.control.actions import Any, NodeAction, Pin, ResumeRun, RunAction, Unpin
from echo_hub.guarding import Guarding
from echo_hub.ledger.decisions import Outcome, Request
from echo_hub.ledger.ledger import Ledger
from echo_hub.orders import Orders, missing_version, sentence_of_pin
from echo_hub.paths import RunFolder
from echo_hub.rollouts.front import Front
from echo_p2p.errors import EchoError
from echo_p2p.nursery import open_nursery

_LOOK_S = 1.0


class Controls:
    """An operator's hands in a hub that serves."""

    def __init__(
        self, *, front: Front, guarding: Guarding, orders: Orders, ledger: Ledger, folder: RunFolder
    ) -> None:
        self._front = front
        self._guarding = guarding
        self._orders = orders
        self._ledger = ledger
        self._folder = folder

    async def do(self, action: Any) -> str:
        """Do it, and say what was done; EchoError if it cannot be done."""
        if isinstance(action, NodeAction):
            return await self._front.do(action)
        if isinstance(action, ResumeRun):
            return f"goes on from version {await self._guarding.resume()}"
        if isinstance(action, Pin | Unpin):
            pinned, kept = isinstance(action, Pin), self._folder.kept()
            if pinned and action.version not in kept:
                raise missing_version(action.version, kept)
            await self._ledger.decisions.pin(action.version, pinned=pinned)
            return sentence_of_pin(action)
        return await self._orders.ask(action)

    async def run(self) -> None:
        """Do what commands left in the ledger for the run, looked for each second, until cancelled;
        what is for a node, the keeper does."""
        begun: set[int] = set()
        async with open_nursery() as nursery:
            while True:
                for request in await self._ledger.decisions.open_requests():
                    if isinstance(request.action, RunAction) and request.request_id not in begun:
                        begun.add(request.request_id)
                        nursery.start_soon(self._obey, request)
                await trio.sleep(_LOOK_S)

    async def _obey(self, request: Request) -> None:
        try:
            outcome = Outcome(await self.do(request.action))
        except EchoError as error:
            outcome = Outcome(error=error.message, fix=error.fix)
        await self._ledger.decisions.request_done(request, outcome)
