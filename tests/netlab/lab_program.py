"""A hub or a node in the network lab, as a process: what a run uses, without learner and engine.

    lab_program.py hub STORE LISTEN [UPLOAD [DOWNLOAD]]
    lab_program.py node STORE LISTEN HUB [UPLOAD [DOWNLOAD]]
    lab_program.py leaf STORE LISTEN NODE [UPLOAD [DOWNLOAD]]

The hub publishes as in a run, over the streams that nodes watch; the nodes fetch what is announced.
A leaf has one peer and no hub; it fetches what it is ordered to. UPLOAD and DOWNLOAD are limits, as
`--max-upload` and `--max-download` take them. Orders come in and news goes out
as JSON lines. Times are `time.monotonic()`, which all processes of a machine share. Ends when its
input does.
"""

from __future__ import annotations

import functools
import json
import random
import resource
import shutil
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from echo_p2p import PROTOCOL
from echo_p2p.artifact.manifest import Artifact, build_manifest
from echo_p2p.artifact.store import Store
from echo_p2p.identity import Identity
from echo_p2p.net.host import Peer, open_peer
from echo_p2p.net.rpc import answer, ask
from echo_p2p.net.stream import Remote, Stream
from echo_p2p.rates import UNLIMITED, Limits, parse_limits
from echo_p2p.swarm.exchange import Exchange, HubSide
from echo_p2p.wire import (
    CONTROL_PROTOCOL,
    MAX_CONTROL_BYTES,
    WATCH_PROTOCOL,
    Announcement,
    BadChunkReport,
    Done,
    Hello,
    Latest,
    LatestRequest,
    Watch,
    decode,
    encode,
)

RUN = "lab"
KEPT = 2  # versions, as a run's nodes keep the last good one beside the newest
HELLO_S, FETCH_S = 20.0, 600.0


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


async def orders() -> AsyncIterator[dict[str, Any]]:
    while line := await trio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True):
        yield json.loads(line)


def usage() -> dict[str, float]:
    """CPU seconds so far, and the most memory ever held."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    status = Path("/proc/self/status").read_text()
    peak_kib = int(status.partition("VmHWM:")[2].split()[0])
    return {"cpu_s": used.ru_utime + used.ru_stime, "peak_mib": peak_kib / 1024}


class Hub:
    """Makes artifacts of random bytes, and announces them."""

    def __init__(self, root: Path, store: Store, peer: Peer) -> None:
        self._root, self._store, self._peer = root, store, peer
        self._addresses: dict[str, tuple[str, ...]] = {}
        self._exchange = Exchange(
            peer, store, hub=HubSide(addresses_of=lambda peer_id: self._addresses.get(peer_id, ()))
        )
        self._made: list[Artifact] = []
        self._newest: Artifact | None = None
        self._changed = trio.Event()
        request = Hello | BadChunkReport | LatestRequest
        answer(peer, CONTROL_PROTOCOL, request, self._control, deadline_s=10)
        peer.serve_stream(WATCH_PROTOCOL, self._watch)

    async def _control(self, remote: Remote, message: Any) -> Done | Latest:
        if isinstance(message, Hello):
            self._addresses[remote.peer_id] = message.addresses
        elif isinstance(message, BadChunkReport):
            say(bad_chunk_from=message.peer)
        else:
            envelope = self._newest.envelope if self._newest else b""
            return Latest(
                run=b"r" * 200, base=b"b" * 200, adapter=envelope, delta=None, hub_time=time.time()
            )
        return Done()

    async def _watch(self, remote: Remote, stream: Stream) -> None:
        decode(await stream.receive(1024, deadline_s=10), Watch)
        say(watched_by=remote.peer_id)
        seen = None
        while True:
            while self._newest is None or self._newest is seen:
                await self._changed.wait()
            seen = self._newest
            await stream.send(encode(Announcement(adapter=seen.envelope, delta=None)))

    async def obey(self) -> None:
        async for order in orders():
            if order["do"] == "make":
                await trio.to_thread.run_sync(self._make, order)
                say(envelope=self._made[-1].envelope.hex())
            elif order["do"] == "publish":
                self._publish()
            say(done=order["do"], sent=self._exchange.stats.bytes_sent.total(), **usage())

    def _make(self, order: dict[str, Any]) -> None:
        source = self._root / "source"
        shutil.rmtree(source, ignore_errors=True)
        source.mkdir()
        rng, left = random.Random(order["version"]), order["bytes"]
        with (source / "adapter.safetensors").open("wb") as file:
            while left:
                left -= file.write(rng.randbytes(min(left, 1 << 20)))
        manifest = build_manifest(
            source,
            run_id=RUN,
            kind="adapter",
            version=order["version"],
            chunk_bytes=order["chunk_bytes"],
            created_at=0.0,
        )
        artifact = Artifact.sign(self._peer.identity, manifest)
        self._store.add(artifact, source)
        self._made.append(artifact)

    def _publish(self) -> None:
        self._newest = self._made[-1]
        self._exchange.offer(self._newest.id)
        say(published_at=time.monotonic())
        self._changed.set()
        self._changed = trio.Event()
        for old in self._made[:-KEPT]:
            self._exchange.withdraw(old.id)
            self._store.remove(old.id)
        del self._made[:-KEPT]


async def hub(folder: str, listen: str, *limits: str) -> None:
    root = Path(folder)
    with Store(root / "store", cap_bytes=None) as store:
        async with open_peer(Identity.create(), [listen], limits=limits_of(*limits)) as peer:
            made = Hub(root, store, peer)
            say(address=peer.addresses[0])
            await made.obey()


def limits_of(upload: str = UNLIMITED, download: str = UNLIMITED) -> Limits:
    return parse_limits(upload=upload, download=download)


class Node:
    """Fetches what the hub announces; a newer version ends the fetch of an older one."""

    def __init__(self, store: Store, peer: Peer, hub_id: str | None, nursery: trio.Nursery) -> None:
        self._store, self._peer, self._hub, self._nursery = store, peer, hub_id, nursery
        self._exchange = Exchange(peer, store)
        self._scope = trio.CancelScope()
        self._asking = trio.CancelScope()
        self._complete: list[Artifact] = []

    async def watch(self, hub_id: str) -> None:
        async with self._peer.stream(hub_id, WATCH_PROTOCOL, deadline_s=HELLO_S) as stream:
            await stream.send(encode(Watch(run_id=RUN)))
            while True:
                frame = await stream.receive(MAX_CONTROL_BYTES, deadline_s=None)
                self._begin(decode(frame, Announcement).adapter)

    def _begin(self, envelope: bytes) -> None:
        self._scope.cancel()
        self._scope = trio.CancelScope()
        self._nursery.start_soon(self._fetch, Artifact.open(envelope, None), self._scope)

    async def _fetch(self, artifact: Artifact, scope: trio.CancelScope) -> None:
        stats, told = self._exchange.stats, 0
        hub_before, peers_before = stats.bytes_from_hub, stats.bytes_from_peers
        say(told_at=time.monotonic(), version=artifact.manifest.version)

        def progress(done: Any) -> None:
            nonlocal told
            percent = 100 * done.done_bytes // done.total_bytes
            if percent >= told + 5:
                told = percent
                say(percent=percent, version=artifact.manifest.version)

        with scope:
            path = await self._exchange.fetch(
                artifact, self._hub, deadline_s=FETCH_S, progress=progress
            )
            say(
                complete=str(path),
                at=time.monotonic(),
                version=artifact.manifest.version,
                from_hub=stats.bytes_from_hub - hub_before,
                from_peers=stats.bytes_from_peers - peers_before,
            )
            self._keep(artifact)

    async def _ask(self, scope: trio.CancelScope, each_s: float) -> None:
        """Ask the hub what is newest, again and again; how long each answer took."""
        assert self._hub is not None
        took = []
        with scope:
            while True:
                began = time.monotonic()
                request = LatestRequest(run_id=RUN)
                await ask(self._peer, self._hub, CONTROL_PROTOCOL, request, Latest, deadline_s=60)
                took.append(time.monotonic() - began)
                await trio.sleep(max(0.0, began + each_s - time.monotonic()))
        say(answers_s=took)

    def _keep(self, artifact: Artifact) -> None:
        self._complete.append(artifact)
        for old in self._complete[:-KEPT]:
            self._exchange.withdraw(old.id)
            self._store.remove(old.id)
        del self._complete[:-KEPT]

    async def obey(self) -> None:
        async for order in orders():
            if order["do"] == "fetch":
                self._begin(bytes.fromhex(order["envelope"]))
            elif order["do"] == "ask":
                self._asking = trio.CancelScope()
                self._nursery.start_soon(self._ask, self._asking, order["each_s"])
            elif order["do"] == "stop asking":
                self._asking.cancel()
            say(done=order["do"], sent=self._exchange.stats.bytes_sent.total(), **usage())


@asynccontextmanager
async def open_node(
    folder: str, listen: str, *limits: str
) -> AsyncIterator[tuple[Store, Peer, trio.Nursery]]:
    with Store(Path(folder) / "store", cap_bytes=None) as store:
        async with (
            open_peer(Identity.create(), [listen], limits=limits_of(*limits)) as peer,
            trio.open_nursery() as nursery,
        ):
            yield store, peer, nursery
            nursery.cancel_scope.cancel()


async def node(folder: str, listen: str, hub_address: str, *limits: str) -> None:
    async with open_node(folder, listen, *limits) as (store, peer, nursery):
        hub_id = await peer.connect([hub_address], deadline_s=HELLO_S)
        hello = Hello(
            protocol=PROTOCOL,
            run_id=RUN,
            software="lab",
            engine="none",
            addresses=peer.addresses,
        )
        await ask(peer, hub_id, CONTROL_PROTOCOL, hello, Done, deadline_s=HELLO_S)
        made = Node(store, peer, hub_id, nursery)
        nursery.start_soon(made.watch, hub_id)
        say(address=peer.addresses[0])
        await made.obey()


async def leaf(folder: str, listen: str, address: str, *limits: str) -> None:
    async with open_node(folder, listen, *limits) as (store, peer, nursery):
        await peer.connect([address], deadline_s=HELLO_S)
        say(address=peer.addresses[0])
        await Node(store, peer, None, nursery).obey()


if __name__ == "__main__":
    roles: dict[str, Callable[..., Awaitable[None]]] = {"hub": hub, "node": node, "leaf": leaf}
    trio.run(functools.partial(roles[sys.argv[1]], *sys.argv[2:]))
