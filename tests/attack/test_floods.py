"""Who asks too much waits, and nobody else does."""

from __future__ import annotations

import pytest
import trio
from attack_support import ANSWER_S, RUN_ID, Arena, Node

from echo_hub.rollouts.doors import Allowances
from echo_p2p.net.rpc import ask
from echo_p2p.wire import CONTROL_PROTOCOL, Latest, LatestRequest


def test_requests_beyond_the_allowance_of_a_key_wait(
    arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arena.hub.endpoints, "_requests", Allowances(burst=3, per_s=1e-6))

    async def latest(node: Node) -> None:
        request = LatestRequest(run_id=RUN_ID)
        await ask(node.peer, node.hub_id, CONTROL_PROTOCOL, request, Latest, deadline_s=ANSWER_S)

    async def scene() -> None:
        for _ in range(3):
            await latest(arena.accomplice)
        with trio.move_on_after(0.3) as too_many:
            await latest(arena.accomplice)
        assert too_many.cancelled_caught
        await latest(arena.honest)

    arena.run(scene)
