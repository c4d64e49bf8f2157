"""A hub and nodes on loopback, in one process, for the tests of the exchange."""

from __future__ import annotations

import functools
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

from echo_p2p.artifact.manifest import Artifact, build_manifest
from echo_p2p.artifact.store import Store
from echo_p2p.identity import Identity
from echo_p2p.net.host import Peer, open_peer
from echo_p2p.net.rpc import answer
from echo_p2p.net.stream import Remote
from echo_p2p.rates import Limits
from echo_p2p.swarm.exchange import Exchange, HubSide
from echo_p2p.wire import CONTROL_PROTOCOL, BadChunkReport, Done, Message

ANY_PORT = "/ip4/127.0.0.1/tcp/0"
CHUNK = 64 * 1024


def in_trio(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a test in trio; one that hangs ends after a while."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        async def bounded() -> None:
            with trio.fail_after(180):
                await test(*args, **kwargs)

        trio.run(bounded)

    return run


def make_artifact(
    identity: Identity, folder: Path, *, size: int = 450_000, chunk: int = CHUNK, version: int = 0
) -> Artifact:
    """Random files in `folder`, and their signed manifest."""
    folder.mkdir(parents=True)
    rng = random.Random(version)
    (folder / "adapter.safetensors").write_bytes(rng.randbytes(size - 700))
    (folder / "adapter_config.json").write_bytes(rng.randbytes(700))
    manifest = build_manifest(
        folder,
        run_id="run",
        kind="adapter",
        version=version,
        chunk_bytes=chunk,
        created_at=0.0,
    )
    return Artifact.sign(identity, manifest)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@dataclass
class Member:
    """One program of the swarm."""

    peer: Peer
    store: Store
    exchange: Exchange


@dataclass
class Swarm:
    """A hub that introduces everybody, and whoever has joined."""

    root: Path
    stack: AsyncExitStack
    addresses: dict[str, tuple[str, ...]] = field(default_factory=dict)
    reports: list[tuple[str, BadChunkReport]] = field(default_factory=list)
    damaged: list[bytes] = field(default_factory=list)
    hub: Member = field(init=False)

    async def _member(
        self, listen: list[str], hub: HubSide | None, limits: Limits | None = None
    ) -> Member:
        peer = await self.stack.enter_async_context(
            open_peer(Identity.create(), listen, limits=limits)
        )
        store = Store(self.root / peer.peer_id, cap_bytes=None)
        self.stack.callback(store.close)
        self.addresses[peer.peer_id] = peer.addresses
        return Member(peer, store, Exchange(peer, store, hub=hub, damaged=self.damaged.append))

    async def open_hub(self) -> None:
        self.hub = await self._member(
            [ANY_PORT], HubSide(addresses_of=lambda peer: self.addresses.get(peer, ()))
        )

        async def control(remote: Remote, message: BadChunkReport) -> Message:
            self.reports.append((remote.peer_id, message))
            return Done()

        answer(self.hub.peer, CONTROL_PROTOCOL, BadChunkReport, control, deadline_s=5)

    async def join(self, *, listening: bool = True, limits: Limits | None = None) -> Member:
        """A node, connected to the hub."""
        member = await self._member([ANY_PORT] if listening else [], None, limits)
        await member.peer.connect(self.hub.peer.addresses, deadline_s=10)
        return member

    async def stranger(self) -> Peer:
        """Somebody connected to the hub who does not run our exchange."""
        peer = await self.stack.enter_async_context(open_peer(Identity.create(), [ANY_PORT]))
        self.addresses[peer.peer_id] = peer.addresses
        await peer.connect(self.hub.peer.addresses, deadline_s=10)
        return peer

    def publish(self, *, version: int = 0, **options: Any) -> tuple[Artifact, Path]:
        """A new artifact that the hub offers, and the folder it was made from."""
        source = self.root / f"source-{version}"
        artifact = make_artifact(self.hub.peer.identity, source, version=version, **options)
        self.hub.store.add(artifact, source)
        self.hub.exchange.offer(artifact.id)
        return artifact, source

    async def fetch(self, artifact: Artifact, *members: Member, deadline_s: float = 30) -> None:
        """All of them, at the same time."""
        async with trio.open_nursery() as nursery:
            for member in members:
                nursery.start_soon(
                    functools.partial(
                        member.exchange.fetch,
                        artifact,
                        self.hub.peer.peer_id,
                        deadline_s=deadline_s,
                    )
                )


@asynccontextmanager
async def open_swarm(root: Path) -> AsyncIterator[Swarm]:
    async with AsyncExitStack() as stack:
        swarm = Swarm(root, stack)
        await swarm.open_hub()
        yield swarm
