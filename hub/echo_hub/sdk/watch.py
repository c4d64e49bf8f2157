"""What happens in a hub, put into a feed as it happens. Runs in the hub's thread."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from echo_hub.paths import RunFolder
from echo_hub.sdk.events import NodeEvent, Publication
from echo_hub.sdk.feed import Feed
from echo_hub.update_facts import UpdateFacts
from echo_p2p.nursery import open_nursery

if TYPE_CHECKING:
    from echo_hub.rollouts.assess import Group
    from echo_hub.service import Hub

_LOOK_S = 0.5


@dataclass(frozen=True)
class ScoredRollouts:
    """A group with its rewards, before it is made text."""

    group: Group
    rewards: tuple[float, ...]


Told = UpdateFacts | Publication | NodeEvent | ScoredRollouts


@dataclass(frozen=True)
class Wanted:
    """What somebody listens to, beside updates."""

    publications: bool = False
    rollouts: bool = False
    nodes: bool = False


@asynccontextmanager
async def watch(
    hub: Hub, feed: Feed[Told], wanted: Wanted, folder: RunFolder
) -> AsyncIterator[trio.Event]:
    """Tell the feed of what happens within the block; given is an event that a pause sets."""
    paused = trio.Event()
    seen = len(hub.loop.history)

    def tell_updates() -> None:
        nonlocal seen
        for facts in hub.loop.history[seen:]:
            seen += 1
            feed.put(facts)

    async def updates() -> None:
        while True:
            tell_updates()
            if hub.loop.guarding.pause is not None:
                paused.set()
            await hub.loop.changed()

    async with open_nursery() as nursery:
        nursery.start_soon(updates)
        if wanted.publications:
            nursery.start_soon(_publications, hub, feed, folder)
        if wanted.nodes:
            nursery.start_soon(_nodes, hub, feed)
        if wanted.rollouts:
            hub.front.on_scored = lambda group, rewards: feed.put(
                ScoredRollouts(group, tuple(rewards))
            )
        try:
            yield paused
            await trio.lowlevel.checkpoint()  # the last publication
        finally:
            hub.front.on_scored = None
        nursery.cancel_scope.cancel()
    tell_updates()


async def _publications(hub: Hub, feed: Feed[Told], folder: RunFolder) -> None:
    seen = hub.publisher.latest.version if hub.publisher.latest is not None else -1
    while True:
        new = await hub.publisher.wait_newer(seen)
        seen = new.version
        delta = None if new.delta is None else new.delta.layout.total_bytes
        size = new.artifact.layout.total_bytes
        feed.put(Publication(new.version, size, delta, folder.adapter(new.version)))


async def _nodes(hub: Hub, feed: Feed[Told]) -> None:
    known: dict[str, tuple[str, str]] = {}
    while True:
        now = set(hub.endpoints.in_session)
        for peer_id in sorted(now - known.keys()):
            said = hub.endpoints.greeted(peer_id)
            known[peer_id] = ("", "") if said is None else (said.engine, said.software)
            feed.put(NodeEvent("joined", peer_id, *known[peer_id], nodes=len(now)))
        for peer_id in sorted(known.keys() - now):
            feed.put(NodeEvent("left", peer_id, *known.pop(peer_id), nodes=len(now)))
        await trio.sleep(_LOOK_S)
