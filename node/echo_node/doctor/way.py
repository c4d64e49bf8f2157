"""The way to the hub: gone once, step by step, and measured. Facts only; the checks judge them.

The hub sees this node's key, if it has one, else one made for the occasion.
"""

from __future__ import annotations

import statistics
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import trio

from echo_node.paths import NodeFolder
from echo_node.peek import peek
from echo_p2p.artifact.manifest import Artifact
from echo_p2p.bootstrap import RunEntry
from echo_p2p.errors import ArtifactError, EchoError, NetError, WireError
from echo_p2p.identity import Identity, public_key_of
from echo_p2p.net.host import Peer, open_peer
from echo_p2p.net.probe import Answer, Probe, probe
from echo_p2p.net.rpc import ask
from echo_p2p.wire import (
    MAX_MEASURE_BYTES,
    MEASURE_PROTOCOL,
    VERSIONS_PROTOCOL,
    MeasureReply,
    MeasureRequest,
    Versions,
    VersionsRequest,
)

PROBE_S = 10.0
MEASURE_S = 15.0
ROUNDS = 3
LEAST_BYTES = 1 << 14


@dataclass
class Way:
    """What was found. Rates are in bytes a second, None where they were not measured.

    `own`: the addresses at which this node would be reached. `config`: the base's config.json.
    """

    own: tuple[str, ...] = ()
    error: EchoError | None = None
    probes: list[Probe] = field(default_factory=list)
    answer: Answer | None = None
    versions: Versions | None = None
    up: float | None = None
    down: float | None = None
    base: Artifact | None = None
    config: bytes | None = None


async def go(entry: RunEntry, folder: NodeFolder, listen: tuple[str, ...]) -> Way:
    """Every address of the hub, and the rest by the first of them that works."""
    way = Way()
    try:
        identity = Identity.load(folder.identity)
    except EchoError:
        identity = Identity.create()
    async with AsyncExitStack() as stack:
        try:
            peer = await stack.enter_async_context(open_peer(identity, listen))
        except EchoError as error:  # said by the check of ports
            way.error = error
            peer = await stack.enter_async_context(open_peer(identity, ()))
        way.own = peer.addresses
        for address in dict.fromkeys(entry.hub_addresses):
            found, answer = await probe(peer, address, entry.id, deadline_s=PROBE_S)
            way.probes.append(found)
            if answer is not None and way.answer is None:
                way.answer = answer
                await _ask_more(peer, entry, way)
            await peer.disconnect(entry.hub_key)
    return way


async def _ask_more(peer: Peer, entry: RunEntry, way: Way) -> None:
    assert way.answer is not None
    hub = entry.hub_key
    try:
        way.versions = await ask(
            peer, hub, VERSIONS_PROTOCOL, VersionsRequest(), Versions, deadline_s=PROBE_S
        )
        way.up, way.down = await measure(peer, hub)
        way.base = Artifact.open(way.answer.latest.base, public_key_of(hub))
        way.config = await peek(peer, hub, way.base, "config.json", deadline_s=MEASURE_S)
    except (NetError, ArtifactError, WireError):
        return  # what could not be asked stays None, and its check says so


async def measure(peer: Peer, hub: str) -> tuple[float | None, float | None]:
    """Rates to and from a connected hub, in bytes a second; a few seconds and 3 MiB at most."""
    size = LEAST_BYTES
    up: list[float] = []
    down: list[float] = []
    least = await _exchange(peer, hub, 0, 0)
    with trio.move_on_after(MEASURE_S):
        while len(down) < ROUNDS:
            sent = await _exchange(peer, hub, size, 0)
            came = await _exchange(peer, hub, 0, size)
            if size < MAX_MEASURE_BYTES and max(sent, came) < 0.5:
                size = min(MAX_MEASURE_BYTES, size * 32)  # a fast line: more tells more
                continue
            up.append(size / max(1e-4, sent - least))
            down.append(size / max(1e-4, came - least))
    return _middle(up), _middle(down)


async def _exchange(peer: Peer, hub: str, up: int, down: int) -> float:
    """Seconds of one request with so many bytes there and back."""
    start = trio.current_time()
    await ask(
        peer,
        hub,
        MEASURE_PROTOCOL,
        MeasureRequest(data=memoryview(bytes(up)), wanted=down),
        MeasureReply,
        deadline_s=MEASURE_S,
        max_reply=MAX_MEASURE_BYTES + 1024,
    )
    return trio.current_time() - start


def _middle(rates: list[float]) -> float | None:
    return statistics.median(rates) if rates else None
