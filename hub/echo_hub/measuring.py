"""What a hub answers to anybody, before a session: its protocols, and how fast the way to it is.

Invariant: measurements cost the hub at most `PER_S` times `MAX_MEASURE_BYTES` a second each way,
after a first few, and `PER_S_OF_ONE` times for one network address, whatever keys it brings; they
wait behind everything else.
"""

from __future__ import annotations

import trio

from echo_hub.rollouts.doors import Allowances, network_of
from echo_p2p import OLDEST_RELEASE, SPOKEN
from echo_p2p.net.host import Peer, Remote
from echo_p2p.net.rpc import answer
from echo_p2p.wire import (
    KIB,
    MAX_MEASURE_BYTES,
    MEASURE_PROTOCOL,
    VERSIONS_PROTOCOL,
    MeasureReply,
    MeasureRequest,
    Versions,
    VersionsRequest,
)

AT_ONCE, PER_S = 32, 0.5
AT_ONCE_OF_ONE, PER_S_OF_ONE = 12, 0.2
ANSWER_S = 60.0


def attach(peer: Peer) -> None:
    """Start answering on `peer`."""
    all_ = Allowances(burst=AT_ONCE, per_s=PER_S)
    one = Allowances(burst=AT_ONCE_OF_ONE, per_s=PER_S_OF_ONE)

    async def versions(remote: Remote, request: VersionsRequest) -> Versions:
        return Versions(protocols=tuple(sorted(SPOKEN)), needs=OLDEST_RELEASE)

    async def measure(remote: Remote, request: MeasureRequest) -> MeasureReply:
        now = trio.current_time()
        network = (network_of(remote.address) or "").encode()
        await trio.sleep(max(all_.take(b"", now), one.take(network, now)))
        return MeasureReply(data=memoryview(bytes(request.wanted)))

    answer(peer, VERSIONS_PROTOCOL, VersionsRequest, versions, deadline_s=10.0, max_request=KIB)
    answer(
        peer,
        MEASURE_PROTOCOL,
        MeasureRequest,
        measure,
        deadline_s=ANSWER_S,
        max_request=MAX_MEASURE_BYTES + KIB,
        concurrency=1,
    )
