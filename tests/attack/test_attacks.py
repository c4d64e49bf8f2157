"""Every lie of `attacks` is rejected for its own reason, and the hub goes on serving its author."""

from __future__ import annotations

from collections import Counter

import pytest
from attack_support import GROUP, Arena, seal_raw
from attacks import ATTACKS, Attack
from attacks_on_envelopes import token_changed_after_signing

from echo_p2p.envelope import seal
from echo_p2p.wire import encode


@pytest.mark.parametrize("attack", ATTACKS, ids=str)
def test_a_lie_is_rejected_with_its_own_code(arena: Arena, attack: Attack) -> None:
    async def scene() -> None:
        before = await arena.counts()
        assert await attack.act(arena) == attack.expected
        assert await arena.counts() - before == attack.counted
        await control(arena)

    arena.run(scene)


async def control(arena: Arena) -> None:
    """The same node is honest now: accepted, and not rejected by the audit either."""
    honest = await arena.ready(arena.attacker)
    before, audited = await arena.counts(), arena.hub.front.snapshot().audited
    assert await arena.outcome(arena.attacker, honest) == "accepted"
    assert await arena.counts() - before == Counter(accepted=GROUP)
    assert arena.hub.front.snapshot().audited == audited + 1


def test_the_envelopes_of_the_attacks_are_those_of_nodes(arena: Arena) -> None:
    async def scene() -> None:
        honest = await arena.ready(arena.attacker)
        envelope = seal_raw(arena.attacker.identity, encode(honest))
        assert envelope == seal(arena.attacker.identity, honest)
        assert (await arena.attacker.send(envelope)).accepted

    arena.run(scene)


def test_of_what_was_not_signed_nothing_is_believed(arena: Arena) -> None:
    async def scene() -> None:
        envelope = seal(arena.attacker.identity, await arena.ready(arena.attacker))
        changed = token_changed_after_signing(envelope, arena)
        for node in (arena.accomplice, arena.attacker):
            assert (await node.send(changed)).lease_id == bytes(16)
        assert (await arena.attacker.send(envelope)).accepted  # the lease was not spoilt

    arena.run(scene)


def test_a_lease_of_another_node_cannot_be_given_back(arena: Arena) -> None:
    async def scene() -> None:
        honest = await arena.ready(arena.honest)
        await arena.attacker.hub.give_back([honest.lease_id])
        assert await arena.outcome(arena.honest, honest) == "accepted"

    arena.run(scene)
