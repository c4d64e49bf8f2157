"""What nodes say of their downloads, and of each other, is heard and gives nobody any power."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import trio
from attack_support import ANSWER_S, RUN_ID, Arena, Node

from echo_hub.ledger.ledger import read_facts, read_nodes
from echo_hub.publish.accusations import Accusations
from echo_p2p import PROTOCOL
from echo_p2p.net.rpc import ask
from echo_p2p.wire import (
    CONTROL_PROTOCOL,
    BadChunkReport,
    Done,
    Hello,
    Latest,
    Message,
    Obtained,
)


@pytest.fixture(autouse=True)
def _clean_record(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(arena.hub.dissemination, "_accusations", Accusations())
    monkeypatch.setattr(arena.hub.endpoints, "_greeted", type(arena.hub.endpoints._greeted)())
    yield
    arena.run(arena.hub.dissemination.write)


def address_of(node: Node) -> str:
    return f"/ip4/127.0.0.1/tcp/9/p2p/{node.peer.peer_id}"


async def greet(node: Node) -> None:
    hello = Hello(
        protocol=PROTOCOL,
        run_id=RUN_ID,
        software="test",
        engine="none",
        addresses=(address_of(node),),
    )
    await ask(node.peer, node.hub_id, CONTROL_PROTOCOL, hello, Latest, deadline_s=ANSWER_S)


async def tell(node: Node, message: Message) -> None:
    await ask(node.peer, node.hub_id, CONTROL_PROTOCOL, message, Done, deadline_s=ANSWER_S)


def accuse(peer_id: str) -> BadChunkReport:
    return BadChunkReport(artifact=bytes(32), peer=peer_id, index=0)


def introduced(arena: Arena, node: Node) -> bool:
    return arena.hub.endpoints.addresses_of(node.peer.peer_id) == (address_of(node),)


def test_a_node_is_not_smeared_by_one_or_two_others(arena: Arena) -> None:
    async def scene() -> None:
        for node in (arena.honest, arena.attacker, arena.accomplice):
            await greet(node)
        for _ in range(5):
            await tell(arena.attacker, accuse(arena.honest.peer.peer_id))
            await tell(arena.accomplice, accuse(arena.honest.peer.peer_id))
        assert introduced(arena, arena.honest)

    arena.run(scene)
    accusers = {row.key: row.accusers for row in read_nodes(arena.folder.ledger)}
    assert accusers[arena.honest.identity.public_key] == 2
    assert accusers.get(arena.attacker.identity.public_key, 0) == 0


def test_enough_nodes_with_standing_shut_a_node_out_of_introductions(
    arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    hears = arena.hub.dissemination

    async def scene() -> None:
        for node in (arena.honest, arena.attacker, arena.accomplice):
            await greet(node)
        await tell(arena.honest, accuse(arena.attacker.peer.peer_id))
        await tell(arena.accomplice, accuse(arena.attacker.peer.peer_id))
        hears._accusations.add(arena.attacker.identity.public_key, b"a third node")
        assert introduced(arena, arena.attacker)  # none of them has done any work
        monkeypatch.setattr(hears, "_has_standing", lambda _: True)
        assert not introduced(arena, arena.attacker)
        assert introduced(arena, arena.honest)

    arena.run(scene)


def test_nonsense_and_strangers_are_not_heard(arena: Arena) -> None:
    before = read_facts(arena.folder.ledger)["nodes_accused"]

    async def scene() -> None:
        await greet(arena.honest)
        await tell(arena.attacker, accuse(arena.honest.peer.peer_id))  # it has not greeted
        await greet(arena.attacker)
        for peer_id in ("", "nonsense", "ü" * 80, arena.accomplice.peer.peer_id):
            await tell(arena.attacker, accuse(peer_id))

    arena.run(scene)
    assert read_facts(arena.folder.ledger)["nodes_accused"] == before


def test_claims_of_downloads_are_held_down_and_count_once(arena: Arena) -> None:
    hub = arena.hub
    (base,) = [one for one in hub.dissemination.spreads.all() if one.kind == "base"]
    claim = Obtained(artifact=base.artifact, seconds=0.0, from_hub=2**44 - 1, from_peers=2**44 - 1)

    async def scene() -> None:
        await tell(arena.attacker, claim)  # it has not greeted
        await greet(arena.attacker)
        for _ in range(3):
            await tell(arena.attacker, claim)
        await tell(
            arena.attacker, Obtained(artifact=bytes(32), seconds=0.0, from_hub=0, from_peers=0)
        )
        await trio.lowlevel.checkpoint()

    arena.run(scene)
    (after,) = [one for one in hub.dissemination.spreads.all() if one.kind == "base"]
    assert after.nodes == base.nodes + 1
    assert after.from_peers == base.from_peers + 2 * base.size
    assert len(hub.dissemination.spreads.all()) == 2
