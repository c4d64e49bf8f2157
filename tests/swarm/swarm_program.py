"""A hub or a node of the swarm, honest or not, as a process of its own.

    swarm_program.py hub STORE
    swarm_program.py node STORE KEY HUB [CAP_BYTES]
    swarm_program.py hostile KEY HUB HOW

HUB is an address, KEY a key file. Orders come in and news goes out as JSON lines; a process goes on
serving until its standard input is closed.

    hub      {"publish": FOLDER, "kind": ..., "version": ..., "chunk": ...} or {"usage": true}
    node     {"fetch": ENVELOPE_FILE}, {"meet": ADDRESS} to connect to a node, or {"usage": true}
    hostile  {"lie_about": ENVELOPE_FILE}
"""

from __future__ import annotations

import functools
import json
import resource
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import trio
from hostile import Hostile

from echo_p2p import PROTOCOL
from echo_p2p.artifact.manifest import Artifact, build_manifest
from echo_p2p.artifact.store import Store
from echo_p2p.identity import Identity
from echo_p2p.net.host import Peer, open_peer
from echo_p2p.net.rpc import answer, ask
from echo_p2p.net.stream import Remote
from echo_p2p.swarm.exchange import Exchange, HubSide
from echo_p2p.swarm.fetch import Progress
from echo_p2p.wire import CONTROL_PROTOCOL, BadChunkReport, Done, Hello

LISTEN = ["/ip4/127.0.0.1/tcp/0"]


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


async def orders() -> AsyncIterator[dict[str, Any]]:
    while line := await trio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True):
        yield json.loads(line)


def usage() -> dict[str, float]:
    used = resource.getrusage(resource.RUSAGE_SELF)
    # not ru_maxrss, which begins with what the parent held when it forked
    status = Path("/proc/self/status").read_text()
    peak_kib = int(status.partition("VmHWM:")[2].split()[0])
    return {"cpu_s": used.ru_utime + used.ru_stime, "peak_kib": peak_kib}


def publish(
    store: Store, identity: Identity, folder: Path, *, kind: Any, version: int, chunk: int
) -> Artifact:
    manifest = build_manifest(
        folder, run_id="run", kind=kind, version=version, chunk_bytes=chunk, created_at=0.0
    )
    artifact = Artifact.sign(identity, manifest)
    store.add(artifact, folder)
    return artifact


async def hub(store_folder: str) -> None:
    addresses: dict[str, tuple[str, ...]] = {}

    async def control(remote: Remote, message: Hello | BadChunkReport) -> Done:
        if isinstance(message, Hello):
            addresses[remote.peer_id] = message.addresses
        else:
            say(bad_chunk_from=message.peer, reporter=remote.peer_id)
        return Done()

    identity = Identity.create()
    with Store(Path(store_folder), cap_bytes=None) as store:
        async with open_peer(identity, LISTEN) as peer:
            answer(peer, CONTROL_PROTOCOL, Hello | BadChunkReport, control, deadline_s=5)
            exchange = Exchange(
                peer, store, hub=HubSide(addresses_of=lambda peer_id: addresses.get(peer_id, ()))
            )
            say(address=peer.addresses[0])
            async for order in orders():
                if "usage" in order:
                    say(**usage())
                    continue
                folder = Path(order.pop("publish"))
                artifact = await trio.to_thread.run_sync(
                    functools.partial(publish, store, identity, folder, **order)
                )
                exchange.offer(artifact.id)
                envelope = Path(store_folder) / f"{artifact.id.hex()}.envelope"
                envelope.write_bytes(artifact.envelope)
                say(published=str(envelope), size=artifact.layout.total_bytes, **usage())
            say(sent=exchange.stats.bytes_sent.total(), **usage())


async def enter(peer: Peer, hub_address: str) -> str:
    """Connect to the hub and tell it where we are; its peer id."""
    hub_id = await peer.connect([hub_address], deadline_s=10)
    hello = Hello(
        protocol=PROTOCOL,
        run_id="run",
        software="test",
        engine="none",
        addresses=peer.addresses,
    )
    await ask(peer, hub_id, CONTROL_PROTOCOL, hello, Done, deadline_s=10)
    return hub_id


async def node(store_folder: str, key: str, hub_address: str, cap_bytes: str = "") -> None:
    identity = Identity.load_or_create(Path(key))
    cap = int(cap_bytes) if cap_bytes else None
    async with AsyncExitStack() as stack:
        store = stack.enter_context(Store(Path(store_folder), cap_bytes=cap))
        peer = await stack.enter_async_context(open_peer(identity, LISTEN))
        exchange = Exchange(peer, store)
        hub_id = await enter(peer, hub_address)
        say(ready=peer.peer_id, **usage())
        async with trio.open_nursery() as nursery:
            async for order in orders():
                if "usage" in order:
                    say(**usage())
                    continue
                if "meet" in order:
                    say(met=await peer.connect([order["meet"]], deadline_s=10))
                    continue
                envelope = await trio.Path(order["fetch"]).read_bytes()
                artifact = Artifact.open(envelope, None)
                nursery.start_soon(fetch, exchange, hub_id, artifact)
            nursery.cancel_scope.cancel()


async def fetch(exchange: Exchange, hub_id: str, artifact: Artifact) -> None:
    began, before = trio.current_time(), usage()["cpu_s"]
    came = {"from_hub": 0, "from_peers": 0}

    def note(progress: Progress) -> None:
        came.update(from_hub=progress.from_hub_bytes, from_peers=progress.from_peers_bytes)
        say(done=progress.done_bytes)

    path = await exchange.fetch(artifact, hub_id, deadline_s=600, progress=note)
    used = usage()
    used["cpu_s"] -= before
    say(
        complete=str(path),
        **came,
        seconds=trio.current_time() - began,
        **used,
    )


async def hostile(key: str, hub_address: str, how: str) -> None:
    identity = Identity.load_or_create(Path(key))
    async with open_peer(identity, LISTEN) as peer:
        liar = Hostile(peer, how, asked=lambda times: say(asked=times))
        await enter(peer, hub_address)
        say(ready=peer.peer_id, address=peer.addresses[0])
        async with trio.open_nursery() as nursery:
            async for order in orders():
                artifact = Artifact.open(await trio.Path(order["lie_about"]).read_bytes(), None)
                liar.lie_about(artifact)
                say(lying=how)
            nursery.cancel_scope.cancel()


if __name__ == "__main__":
    roles: dict[str, Callable[..., Awaitable[None]]] = {
        "hub": hub,
        "node": node,
        "hostile": hostile,
    }
    trio.run(functools.partial(roles[sys.argv[1]], *sys.argv[2:]))
