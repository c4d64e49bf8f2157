"""Connecting to a peer by whichever of its addresses works first.

Addresses are tried in their order, each given a head start of `STAGGER_S` over the next; the first
connection ends the other attempts. Noise proves who answers: an address at which another peer
answers has failed.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from weakref import WeakValueDictionary

import trio
from libp2p.peer.id import ID
from multiaddr import Multiaddr

from echo_p2p.errors import UnreachableError
from echo_p2p.net import addresses, tuning
from echo_p2p.net.libp2p_host import Host, cause_of
from echo_p2p.net.stream import LOST

log = logging.getLogger(__name__)


class Dialer:
    """Makes a host's outbound connections, at most one attempt a peer at a time."""

    def __init__(self, host: Host, peer_id: str) -> None:
        self._host = host
        self._own = peer_id
        self._locks: WeakValueDictionary[str, trio.Lock] = WeakValueDictionary()

    async def connect(self, targets: Sequence[str], *, deadline_s: float) -> str:
        """Connect to the one peer that `targets` name; its peer id."""
        names = {addresses.peer_of(address) for address in targets}
        if len(names) != 1:
            raise UnreachableError(f"the addresses of one peer are wanted, not of {len(names)}.")
        peer_id = names.pop()
        if peer_id == self._own:
            raise UnreachableError(f"{peer_id} is this program itself.")
        dials = [partial(self._dial, address, peer_id) for address in targets]
        failures: dict[int, str] = {}
        lock = self._locks.setdefault(peer_id, trio.Lock())
        with trio.move_on_after(deadline_s):
            async with lock:
                if self._host.is_connected(peer_id):
                    return peer_id
                await _first(dials, failures)
        if self._host.is_connected(peer_id):
            return peer_id
        found = [failures.get(number, "no answer") for number in range(len(targets))]
        log.debug("%s cannot be reached: %s", peer_id, list(zip(targets, found, strict=True)))
        tried = _by_cause(targets, found)
        raise UnreachableError(
            f"{peer_id} cannot be reached at {tried}.",
            fix="Is it running, and is its port open?",
            tried=tried,
        )

    async def _dial(self, address: str, peer_id: str) -> str | None:
        """None when connected, else how it failed."""
        try:
            endpoints = await addresses.endpoints(address)
        except UnreachableError as error:
            return error.message.rstrip(".")
        dials = [partial(self._dial_endpoint, endpoint, peer_id) for endpoint in endpoints]
        failures: dict[int, str] = {}
        await _first(dials, failures)
        return None if self._host.is_connected(peer_id) else failures.get(0, "it has no address")

    async def _dial_endpoint(self, endpoint: Multiaddr, peer_id: str) -> str | None:
        try:
            await self._host.get_network().dial_addr(endpoint, ID.from_string(peer_id))
        except LOST as error:
            return cause_of(error)
        return None


def _by_cause(targets: Sequence[str], found: Sequence[str]) -> str:
    """What was found where: the places that failed in the same way together."""
    places: dict[str, dict[str, None]] = {}
    for address, cause in zip(targets, found, strict=True):
        places.setdefault(cause, {})[addresses.parse(address).place] = None
    return ", ".join(f"{', '.join(there)} ({cause})" for cause, there in places.items())


async def _first(
    attempts: Sequence[Callable[[], Awaitable[str | None]]], failures: dict[int, str]
) -> None:
    """Run attempts, each begun `STAGGER_S` after the one before or when that has failed.

    Ends with the first that gives None; how the others failed goes to `failures` as it happens.
    """

    async def run(number: int, failed: trio.Event) -> None:
        failure = await attempts[number]()
        if failure is None:
            nursery.cancel_scope.cancel()
        else:
            failures[number] = failure
            failed.set()

    async with trio.open_nursery() as nursery:
        for number in range(len(attempts)):
            failed = trio.Event()
            nursery.start_soon(run, number, failed)
            with trio.move_on_after(tuning.STAGGER_S):
                await failed.wait()
