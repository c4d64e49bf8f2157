"""How far one gets on the way to a hub: name, connection, greeting, Noise, protocol, run.

Promise: a probe of an address ends by its deadline and says the first step that failed and why; it
changes nothing at the hub, and the hub learns nothing of the prober but its key and address.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

import trio
from multiaddr import Multiaddr

from echo_p2p.envelope import open_envelope
from echo_p2p.errors import EchoError, NetError, PeerRefusedError, UnreachableError
from echo_p2p.identity import public_key_of
from echo_p2p.net import addresses
from echo_p2p.net.host import Peer
from echo_p2p.net.libp2p_host import cause_of
from echo_p2p.net.rpc import ask
from echo_p2p.wire import CONTROL_PROTOCOL, Latest, LatestRequest, RunDescription

_GREETING = b"\x13/multistream/1.0.0\n"  # length, name: what both sides of libp2p say first
_WEB = (b"HTTP/", b"<")


class Step(StrEnum):
    """The steps, in their order."""

    NAME = "name"
    CONNECTION = "connection"
    GREETING = "greeting"
    NOISE = "noise"
    PROTOCOL = "protocol"
    RUN = "run"


@dataclass(frozen=True)
class Probe:
    """What became of an address. `failed` None: all steps were made, in `seconds`.

    `web`: something that speaks HTTP answers there, as the log-in page of a public network does.
    """

    address: str
    failed: Step | None
    cause: str = ""
    seconds: float = 0.0
    web: bool = False


@dataclass(frozen=True)
class Answer:
    """What the hub said, and when it was asked and answered by this machine's clock."""

    latest: Latest
    run: RunDescription
    asked_at: float
    answered_at: float

    @property
    def clock_offset_s(self) -> float:
        """By how much the hub's clock is ahead of this machine's."""
        return self.latest.hub_time - (self.asked_at + self.answered_at) / 2


async def probe(
    peer: Peer, address: str, run_id: str, *, deadline_s: float
) -> tuple[Probe, Answer | None]:
    """Go the whole way to one address of a hub; the connection stays if all steps were made."""
    start = trio.current_time()
    reached = await greet(address, deadline_s=deadline_s)
    answer: Answer | None = None
    failed, cause = reached.failed, reached.cause
    if failed is None:
        failed, cause, answer = await _ask(peer, address, run_id, deadline_s)
    seconds = trio.current_time() - start
    return Probe(address, failed, cause, seconds, reached.web), answer


async def greet(address: str, *, deadline_s: float) -> Probe:
    """The steps before there is any secret: whether something of libp2p answers at an address."""
    try:
        with trio.fail_after(deadline_s):
            found = await addresses.endpoints(address)
    except UnreachableError as error:
        return Probe(address, Step.NAME, error.message.rstrip("."))
    except trio.TooSlowError:
        return Probe(address, Step.NAME, f"no answer in {deadline_s:g} s")
    if not found:
        return Probe(address, Step.NAME, "it has no address")
    for endpoint in found:
        last = await _greet_endpoint(address, endpoint, deadline_s)
        if last.failed is None:
            return last
    return last


async def find_web(targets: Iterable[str], *, deadline_s: float) -> str:
    """The first of some addresses at which a web server answers instead of libp2p; else empty."""
    found = ""
    with trio.move_on_after(deadline_s):
        async with trio.open_nursery() as nursery:

            async def look(address: str) -> None:
                nonlocal found
                if (await greet(address, deadline_s=deadline_s)).web and not found:
                    found = address
                    nursery.cancel_scope.cancel()

            for address in targets:
                nursery.start_soon(look, address)
    return found


async def _greet_endpoint(address: str, endpoint: Multiaddr, deadline_s: float) -> Probe:
    host = endpoint.value_for_protocol(next(iter(endpoint.protocols())).name)
    port = int(endpoint.value_for_protocol("tcp"))
    step = Step.CONNECTION
    try:
        with trio.fail_after(deadline_s):
            async with await trio.open_tcp_stream(host, port) as stream:
                step = Step.GREETING
                await stream.send_all(_GREETING)
                said = await _first_bytes(stream)
    except trio.TooSlowError:
        return Probe(address, step, f"no answer in {deadline_s:g} s")
    except (OSError, trio.BrokenResourceError) as error:
        return Probe(address, step, cause_of(error))
    if said == _GREETING:
        return Probe(address, None)
    if said.startswith(_WEB):
        return Probe(address, Step.GREETING, "a web server answers there", web=True)
    cause = "another program answers there" if said else "it hangs up"
    return Probe(address, Step.GREETING, cause)


async def _first_bytes(stream: trio.SocketStream) -> bytes:
    said = b""
    while len(said) < len(_GREETING) and _GREETING.startswith(said):
        more = await stream.receive_some(len(_GREETING) - len(said))
        if not more:
            break
        said += bytes(more)
    return said


async def _ask(
    peer: Peer, address: str, run_id: str, deadline_s: float
) -> tuple[Step | None, str, Answer | None]:
    try:
        peer_id = await peer.connect([address], deadline_s=deadline_s)
    except UnreachableError as error:
        return Step.NOISE, error.tried or error.message, None
    asked_at = time.time()
    try:
        latest = await ask(
            peer,
            peer_id,
            CONTROL_PROTOCOL,
            LatestRequest(run_id=run_id),
            Latest,
            deadline_s=deadline_s,
        )
    except PeerRefusedError as error:
        return Step.RUN, error.message, None
    except NetError as error:
        return Step.PROTOCOL, error.message, None
    answered_at = time.time()
    try:
        run = open_envelope(latest.run, RunDescription, key=public_key_of(peer_id)).message
    except EchoError as error:
        return Step.RUN, error.message, None
    if run.run_id != run_id:
        return Step.RUN, f"the hub described run {run.run_id!r}", None
    return None, "", Answer(latest, run, asked_at, answered_at)
