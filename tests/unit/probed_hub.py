"""What a hub shows before a session, and nothing else: cheap, without torch."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from echo_hub import measuring
from echo_p2p.envelope import seal
from echo_p2p.errors import PeerRefusedError
from echo_p2p.identity import Identity
from echo_p2p.net.host import Peer, Remote, open_peer
from echo_p2p.net.rpc import answer
from echo_p2p.wire import CONTROL_PROTOCOL, Latest, LatestRequest, RunDescription

RUN_ID = "probed"


def describe(**changes: object) -> RunDescription:
    usual: dict[str, object] = {
        "run_id": RUN_ID,
        "task": "a test",
        "base": bytes(32),
        "group_size": 8,
        "staleness": 2,
        "vocab_size": 49152,
        "context": 1024,
        "dtype": "float32",
        "created_at": 1.0,
        "environments": (),
    }
    return RunDescription(**{**usual, **changes})  # type: ignore[arg-type]


@asynccontextmanager
async def probed_hub(
    *,
    clock: Callable[[], float] = time.time,
    signer: Identity | None = None,
    base: bytes = b"",
    run: RunDescription | None = None,
    answers: bool = True,
    identity: Identity | None = None,
) -> AsyncIterator[Peer]:
    """A hub of run RUN_ID on loopback; `answers` False: it speaks none of our protocols."""
    identity = identity or Identity.create()

    async def control(remote: Remote, request: LatestRequest) -> Latest:
        if request.run_id != RUN_ID:
            raise PeerRefusedError("no such run here.", code="wrong_run")
        envelope = seal(signer or identity, run or describe())
        return Latest(run=envelope, base=base, adapter=None, delta=None, hub_time=clock())

    async with open_peer(identity, ["/ip4/127.0.0.1/tcp/0"]) as peer:
        if answers:
            answer(peer, CONTROL_PROTOCOL, LatestRequest, control, deadline_s=10)
            measuring.attach(peer)
        yield peer
