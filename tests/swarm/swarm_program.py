"""A hub or a node of the swarm as a process of its own: `swarm_program.py hub|node ARGUMENTS`.

It says what happens in JSON lines and goes on serving until its standard input is closed.

    hub STORE SOURCE CHUNK_BYTES    publishes the folder SOURCE
    node STORE KEY ENVELOPE HUB     joins the hub at address HUB and fetches; KEY is its key file
"""

from __future__ import annotations

import functools
import json
import resource
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import trio

from echo_p2p import PROTOCOL
from echo_p2p.artifact.manifest import Artifact, build_manifest
from echo_p2p.artifact.store import Store
from echo_p2p.identity import Identity
from echo_p2p.net.host import open_peer
from echo_p2p.net.rpc import answer, ask
from echo_p2p.net.stream import Remote
from echo_p2p.swarm.exchange import Exchange, HubSide
from echo_p2p.wire import CONTROL_PROTOCOL, BadChunkReport, Done, Hello

LISTEN = ["/ip4/127.0.0.1/tcp/0"]


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


async def until_told_to_stop() -> None:
    await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)


def usage() -> dict[str, float]:
    used = resource.getrusage(resource.RUSAGE_SELF)
    # not ru_maxrss, which begins with what the parent held when it forked
    status = Path("/proc/self/status").read_text()
    peak_kib = int(status.partition("VmHWM:")[2].split()[0])
    return {"cpu_s": used.ru_utime + used.ru_stime, "peak_kib": peak_kib}


async def hub(store_folder: str, source: str, chunk_bytes: str) -> None:
    addresses: dict[str, tuple[str, ...]] = {}

    async def control(remote: Remote, message: Hello | BadChunkReport) -> Done:
        if isinstance(message, Hello):
            addresses[remote.peer_id] = message.addresses
        else:
            say(bad_chunk_from=message.peer)
        return Done()

    identity = Identity.create()
    with Store(Path(store_folder), cap_bytes=None) as store:
        manifest = build_manifest(
            Path(source),
            run_id="run",
            kind="adapter",
            version=0,
            chunk_bytes=int(chunk_bytes),
            created_at=0.0,
        )
        artifact = Artifact.sign(identity, manifest)
        store.add(artifact, Path(source))
        async with open_peer(identity, LISTEN) as peer:
            answer(peer, CONTROL_PROTOCOL, Hello | BadChunkReport, control, deadline_s=5)
            exchange = Exchange(
                peer, store, hub=HubSide(addresses_of=lambda peer_id: addresses.get(peer_id, ()))
            )
            exchange.offer(artifact.id)
            envelope = Path(store_folder) / "envelope"
            envelope.write_bytes(artifact.envelope)
            before = usage()["cpu_s"]
            say(address=peer.addresses[0], envelope=str(envelope))
            await until_told_to_stop()
            used = usage()
            used["cpu_s"] -= before
            say(sent=exchange.stats.bytes_sent.total(), **used)


async def node(store_folder: str, key: str, envelope: str, hub_address: str) -> None:
    artifact = Artifact.open(await trio.Path(envelope).read_bytes(), None)
    identity = Identity.load_or_create(Path(key))
    with Store(Path(store_folder), cap_bytes=None) as store:
        async with open_peer(identity, LISTEN) as peer:
            exchange = Exchange(peer, store)
            hub_id = await peer.connect([hub_address], deadline_s=10)
            hello = Hello(
                protocol=PROTOCOL,
                run_id="run",
                software="test",
                engine="none",
                addresses=peer.addresses,
            )
            await ask(peer, hub_id, CONTROL_PROTOCOL, hello, Done, deadline_s=10)
            say(ready=peer.peer_id, **usage())
            await trio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True)
            before, began = usage()["cpu_s"], trio.current_time()
            path = await exchange.fetch(
                artifact, hub_id, deadline_s=120, progress=lambda p: say(done=p.done_bytes)
            )
            used = usage()
            used["cpu_s"] -= before
            say(
                complete=str(path),
                from_hub=exchange.stats.bytes_from_hub,
                from_peers=exchange.stats.bytes_from_peers,
                seconds=trio.current_time() - began,
                **used,
            )
            await until_told_to_stop()


if __name__ == "__main__":
    roles: dict[str, Callable[..., Awaitable[None]]] = {"hub": hub, "node": node}
    trio.run(functools.partial(roles[sys.argv[1]], *sys.argv[2:]))
