"""A node whose hub replies itself: over lost sessions, until the lease ends, with what it kept."""

# ruff: noqa: F811 - fixtures
from __future__ import annotations

import time
from pathlib import Path

import pytest
import trio
from net_support import in_trio
from small_hub import SmallHub
from test_node import _quick, a_node, adapters, base, fixed_address, hub  # noqa: F401

from echo_p2p.dialogue import Rules, fault_in, turns_of
from echo_p2p.errors import ConfigError
from echo_p2p.wire import HandedTurn, Sampling, Submission, Turns, unpack_tokens

STOP = (2, 7, 11, 19, 23, 31, 37, 41, 43, 53)
SAMPLING = Sampling(temperature=1.0, max_new_tokens=60, stop=STOP)
TURNS = Turns(environment="", state=b"{}", before=b"", after=b"", max_turns=5, turn_tokens=12)


def order(hub: SmallHub, count: int, **fields: object) -> None:
    hub.order(count, sampling=SAMPLING, turns=TURNS, **fields)


def reply(turn: HandedTurn) -> list[int] | None:
    """A function of the turn alone, over after some."""
    tokens = unpack_tokens(turn.tokens)
    return None if tokens[0] % 7 == 0 else [5, 6 + turn.number, len(tokens)]


def check(hub: SmallHub, submission: Submission) -> int:
    """The answers are what their turns lead to; how many turns there were."""
    lease = hub.granted[submission.lease_id]
    said = 0
    for index, rollout in enumerate(submission.rollouts):
        tokens = unpack_tokens(rollout.tokens)

        def replied(turns: list[list[int]], rollout: int = index) -> list[int] | None:
            return reply(
                HandedTurn(
                    rollout=rollout, number=len(turns) - 1,
                    tokens=b"".join(t.to_bytes(4, "little") for t in turns[-1]),
                )
            )  # fmt: skip

        assert fault_in(tokens, rollout.observed, Rules.of(SAMPLING, lease.turns), replied) == ""
        said += len(turns_of(tokens, rollout.observed))
    return said


@in_trio
async def test_dialogues_go_on_when_the_hub_is_back(
    hub: SmallHub, adapters: list[Path], tmp_path: Path
) -> None:
    hub.reply = reply
    hub.ready_to_reply = False
    listen, addresses = fixed_address(hub)
    async with a_node(hub, addresses, tmp_path) as running:
        async with hub.on_the_network(listen):
            hub.publish(0, adapters[0])
            order(hub, 3)
            await hub.changed.until(lambda: len(hub.turns) > 2)  # it asks, and asks again
        asked = len(hub.turns)
        hub.ready_to_reply = True
        async with hub.on_the_network(listen):
            await hub.changed.until(lambda: len(hub.submissions) == 3)
        assert len(hub.turns) > asked
        assert running.engine._engine.prefixes.reused > 0
    assert sum(check(hub, one) for one in hub.submissions.values()) > 24
    assert hub.returned == []


@in_trio
async def test_a_lease_that_ends_meanwhile_is_let_go(
    hub: SmallHub, adapters: list[Path], tmp_path: Path
) -> None:
    hub.ready_to_reply = False
    listen, addresses = fixed_address(hub)
    async with a_node(hub, addresses, tmp_path), hub.on_the_network(listen):
        hub.publish(0, adapters[0])
        order(hub, 1, expires_at=time.time() + 3)
        await hub.changed.until(lambda: bool(hub.returned))
        hub.ready_to_reply = True
        hub.order(1)
        await hub.changed.until(lambda: len(hub.submissions) == 1)
    (given_up,) = hub.returned
    assert given_up not in hub.submissions


def test_a_run_with_environments_of_a_later_release_says_to_upgrade(
    hub: SmallHub, tmp_path: Path
) -> None:
    hub.description = {"environments": ("guess-number/1", "chess/9")}

    async def main() -> None:
        with trio.fail_after(60):
            async with hub.on_the_network() as peer, a_node(hub, peer.addresses, tmp_path):
                await trio.sleep_forever()

    with pytest.raises(ConfigError, match=r"needs chess/9, and this program has not.*Upgrade it"):
        trio.run(main)
