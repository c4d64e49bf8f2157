"""Standing at work in the front: bans and what they take along, newcomers, leases, verdicts."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio
from sqlalchemy import select
from test_front import HONEST, HUB, Node, World, config, until

from echo_hub.control.actions import Action, Annotate, Ban, Quarantine, Release, Unban, to_json
from echo_hub.learner.messages import Audited
from echo_hub.ledger.decisions import (
    Annotation,
    leave_request,
    outcome_of,
    read_annotations,
    read_audit,
)
from echo_hub.ledger.ledger import Ledger, read_facts, read_nodes
from echo_hub.ledger.schema import groups
from echo_hub.rollouts.assess import Group
from echo_hub.rollouts.front import Front
from echo_hub.rollouts.reputation import Record
from echo_p2p.envelope import open_envelope
from echo_p2p.errors import PeerRefusedError
from echo_p2p.wire import LeaseRequest, LeaseReturn, Receipt

FALSE = Audited(max_margin=3.0, max_logprob_difference=0.0, mismatches=1, tokens=9)
ODD = Audited(max_margin=0.05, max_logprob_difference=0.0, mismatches=1, tokens=9)


def world(path: Path, **sections: dict[str, Any]) -> World:
    return World(path, config(audit={"floor": 1.0, "ban": True}, **sections))


def lies_of(node: Node) -> Any:
    def found(group: Group) -> Audited:
        return FALSE if group.lease.node == node.key else HONEST

    return found


async def refused(node: Node) -> str:
    with pytest.raises(PeerRefusedError) as refusal:
        await node.leases(1)
    with pytest.raises(PeerRefusedError):
        await node.submit(b"anything")
    return f"{refusal.value.code}: {refusal.value.message}"


def trained(ledger: Ledger, node: Node) -> list[tuple[bool, bool]]:
    """(audited, disputed) of a node's groups that were trained on."""
    with ledger._engine.connect() as connection:
        query = select(groups.c.audited, groups.c.disputed).where(
            groups.c.state == "consumed", groups.c.node == node.key
        )
        return [(row.audited, row.disputed) for row in connection.execute(query)]


def test_fraud_bans_and_takes_along_all_that_waits(tmp_path: Path) -> None:
    scene = world(tmp_path)

    async def body(front: Front, ledger: Ledger) -> None:
        cheat, honest = Node(front, "cheat"), Node(front, "honest")
        await cheat.work(2)
        await until(front, lambda now: now.buffered == 2)
        kept = await cheat.leases(3)
        scene.evidence = lies_of(cheat)
        assert (await cheat.submit(cheat.answer(kept[0]))).accepted
        await until(front, lambda now: cheat.key in now.banned and not now.checking)
        now = front.snapshot()
        assert (now.buffered, now.running) == (0, 0)
        assert now.rollouts_rejected == {"audit_margin": 2, "banned": 4}
        assert "not those of the claimed policy" in await refused(cheat)
        assert (await refused(cheat)).startswith("banned: ")
        # its prompts, the spoilt one among them, go to others
        again = await honest.leases(5)
        assert {lease.prompt for lease in kept} <= {lease.prompt for lease in again}
        for lease in again[:4]:
            assert (await honest.submit(honest.answer(lease))).accepted
        assert {group.node for group in await front.take_batch()} == {honest.key}
        assert await ledger.closed_lease(kept[2].lease_id) is not None

    scene.run(body)
    (facts,) = [row for row in read_nodes(tmp_path / "ledger.sqlite") if row.record.banned]
    assert (facts.accepted, facts.rejected) == (0, 6)

    async def after_a_restart(front: Front, ledger: Ledger) -> None:
        assert (await refused(Node(front, "cheat"))).startswith("banned: ")

    scene.run(after_a_restart)


def test_what_was_trained_on_unaudited_is_disputed_and_an_update_in_hand_too(
    tmp_path: Path,
) -> None:
    scene = world(tmp_path)

    async def body(front: Front, ledger: Ledger) -> None:
        cheat = Node(front, "cheat")
        await cheat.work(2)
        await until(front, lambda now: now.buffered == 2)
        chance = front._assessor.probability
        front._assessor.probability = lambda node: 0.0
        await cheat.work(6)
        batch = await front.take_batch()
        await ledger.commit_update(1, [group.group_id for group in batch], {})
        front.advance(1, published=True)
        second = await front.take_batch()  # in the learner's hands while the ban comes
        front._assessor.probability = chance
        scene.evidence = lies_of(cheat)
        await cheat.work(1, version=1)
        await until(front, lambda now: cheat.key in now.banned)
        assert sorted(trained(ledger, cheat)) == [(False, True)] * 2 + [(True, False)] * 2
        await ledger.commit_update(2, [group.group_id for group in second], {})
        front.advance(2, published=True)
        assert sorted(trained(ledger, cheat)) == [(False, True)] * 6 + [(True, False)] * 2
        assert read_facts(tmp_path / "ledger.sqlite")["groups_disputed"] == 6
        await front._keeper.unban(cheat.key)
        assert all(not disputed for _, disputed in trained(ledger, cheat))
        assert len(await cheat.leases(1, version=2)) == 1

    scene.run(body)


def test_groups_behind_an_audit_wait_for_it(tmp_path: Path) -> None:
    """A cheat that hands in many at once gets none of them in beside the one that is audited."""
    scene = world(tmp_path)

    async def body(front: Front, ledger: Ledger) -> None:
        cheat = Node(front, "cheat")
        leases = await cheat.leases(6)
        scene.evidence = lies_of(cheat)
        chances = iter([1.0] + [0.0] * 5)
        front._assessor.probability = lambda node: next(chances)
        for lease in leases:
            with suppress(PeerRefusedError):  # once it is banned
                await cheat.submit(cheat.answer(lease))
        await until(front, lambda now: cheat.key in now.banned and not now.checking)
        assert front.snapshot().buffered == 0
        assert front.snapshot().rollouts_accepted == 0

    scene.run(body)


def test_a_doubtful_audit_or_a_bad_answer_costs_standing_and_no_more(tmp_path: Path) -> None:
    scene = world(tmp_path)

    async def body(front: Front, ledger: Ledger) -> None:
        node = Node(front)

        def valid() -> float:
            return front.snapshot().nodes[0].valid

        await node.work(3)
        await until(front, lambda now: now.buffered == 3)
        assert valid() == pytest.approx(3)
        scene.evidence = lambda group: ODD
        await node.work(1)
        await until(front, lambda now: not now.checking)
        assert (valid(), front.snapshot().banned) == (0, frozenset())
        scene.evidence = lambda group: HONEST
        await node.work(1)
        await until(front, lambda now: not now.checking)
        assert valid() == pytest.approx(1)
        (lease,) = await node.leases(1)
        assert (await node.submit(node.answer(lease, rollouts=()))).code == "wrong_group_size"
        assert valid() == 0

    scene.run(body)


def test_not_answering_costs_as_much_as_a_bad_answer(tmp_path: Path) -> None:
    scene = world(tmp_path)

    async def body(front: Front, ledger: Ledger) -> None:
        node = Node(front)
        await node.work(3)
        await until(front, lambda now: now.buffered == 3)
        leases = await node.leases(3)
        await front.return_leases(
            node.key, LeaseReturn(run_id="run", lease_ids=(leases[0].lease_id,))
        )
        assert front.snapshot().nodes[0].valid == pytest.approx(2)
        scene.now += 101
        await front.expire()
        assert front.snapshot().nodes[0].valid == 0
        again = await Node(front, "other").leases(3)
        assert {lease.prompt for lease in leases} == {lease.prompt for lease in again}

    scene.run(body)


def test_newcomers_together_have_a_share_of_one_update_in_hand(tmp_path: Path) -> None:
    scene = world(
        tmp_path,
        learner={"groups_per_update": 8, "staleness": 2},
        lease={"newcomer_share": 0.25, "groups_per_request": 16},
    )

    async def body(front: Front, ledger: Ledger) -> None:
        first, second = Node(front, "first"), Node(front, "second")
        leases = await first.leases(16)
        assert len(leases) == 2
        assert await second.leases(16) == []
        await first.submit(first.answer(leases[0]))
        await until(front, lambda now: now.buffered == 1)
        # the first is no newcomer any more, and its other lease no newcomer's
        assert len(await first.leases(16)) == 16
        assert len(await second.leases(16)) == 2
        assert await Node(front, "third").leases(16) == []

    scene.run(body)


def test_a_verdict_after_the_receipt_is_told_once_with_the_next_leases(tmp_path: Path) -> None:
    scene = world(tmp_path)

    async def body(front: Front, ledger: Ledger) -> None:
        node = Node(front)
        scene.evidence = lambda group: ODD
        (lease,) = await node.work(1)
        await until(front, lambda now: not now.checking)
        request = LeaseRequest(run_id="run", version=0, groups=1, wait_s=0)
        grant = await front.request_leases(node.key, request)
        (sealed,) = grant.verdicts
        verdict = open_envelope(sealed, Receipt, key=HUB.public_key).message
        assert (verdict.accepted, verdict.code) == (False, "audit_margin")
        assert verdict.lease_id == lease.lease_id
        assert "0.05" in verdict.sentence
        assert (await front.request_leases(node.key, request)).verdicts == ()

    scene.run(body)


async def asked(front: Front, path: Path, action: Action) -> str:
    """What the hub says once it has done what a command asked for."""
    request = leave_request(path, to_json(action))  # type: ignore[arg-type]
    await until(front, lambda now: outcome_of(path, request) is not None)
    outcome = outcome_of(path, request)
    assert outcome is not None
    return outcome.sentence or outcome.error


def test_an_operators_ban_is_done_while_the_hub_serves(tmp_path: Path) -> None:
    scene = world(tmp_path)
    path = tmp_path / "ledger.sqlite"

    async def body(front: Front, ledger: Ledger) -> None:
        node = Node(front)
        await node.work(2)
        await until(front, lambda now: now.buffered == 2)
        assert (await asked(front, path, Ban(node.key, "because."))).startswith("banned 12D3")
        assert node.key in front.snapshot().banned
        assert front.snapshot().buffered == 0
        assert (await refused(node)).endswith("because.")
        assert (await asked(front, path, Unban(node.key))).startswith("unbanned 12D3")
        assert len(await node.leases(1)) == 1

    scene.run(body)


def test_a_node_in_quarantine_works_on_is_audited_and_not_trained_on(tmp_path: Path) -> None:
    scene = world(tmp_path)
    path = tmp_path / "ledger.sqlite"

    async def body(front: Front, ledger: Ledger) -> None:
        odd, other = Node(front, "odd"), Node(front, "other")
        for node in (odd, other):
            await node.work(2)
        await until(front, lambda now: now.buffered == 4)
        kept = await odd.leases(1)
        await asked(front, path, Quarantine(odd.key, "it looks odd."))
        assert front.snapshot().buffered == 2  # the other's
        front._keeper.reputation.audit_probability = lambda *_: 0.0  # type: ignore[method-assign]
        audited = len(scene.audited)
        assert (await odd.submit(odd.answer(kept[0]))).accepted  # its lease was not taken away
        await until(front, lambda now: not now.checking and now.buffered == 2)
        assert len(scene.audited) == audited + 1
        assert front.snapshot().rollouts_rejected == {"quarantined": 6}
        assert not front.has_standing(odd.key)
        assert not front.is_banned(odd.key)
        assert front.node_facts(odd.key).valid > 2  # type: ignore[union-attr]
        with ledger._engine.connect() as connection:
            assert read_audit(connection, 5) == HONEST
        await asked(front, path, Annotate(odd.key, name="my own", note="<b>watch it</b>"))

    async def after_a_restart(front: Front, ledger: Ledger) -> None:
        odd = Node(front, "odd")
        assert front.quarantined(odd.key) == "it looks odd."
        with ledger._engine.connect() as connection:
            words = read_annotations(connection)
        assert words == {odd.key: Annotation("my own", "<b>watch it</b>")}
        await asked(front, path, Release(odd.key))
        assert front.has_standing(odd.key)
        before = front.snapshot().buffered
        await odd.work(1)
        await until(front, lambda now: now.buffered == before + 1)

    scene.run(body)
    scene.run(after_a_restart)


def test_a_ban_without_a_hub_drops_what_waits(tmp_path: Path) -> None:
    scene = world(tmp_path)
    keys = []

    async def body(front: Front, ledger: Ledger) -> None:
        node = Node(front)
        keys.append(node.key)
        await node.work(2)
        await node.leases(2)
        await until(front, lambda now: now.buffered == 2)

    async def ban() -> None:
        async with Ledger.open(tmp_path / "ledger.sqlite", "run") as ledger:
            await ledger.ban(keys[0], Record(banned="because."))

    scene.run(body)
    trio.run(ban)
    facts = read_facts(tmp_path / "ledger.sqlite")
    assert facts["rollouts_rejected"] == {"banned": 4}
    assert (facts["groups_buffered"], facts["open_leases"]) == (0, 0)

    async def after(front: Front, ledger: Ledger) -> None:
        assert (await refused(Node(front))).endswith("because.")
        assert len(await Node(front, "other").leases(4)) == 4

    scene.run(after)


def test_a_flood_of_bad_submissions_is_slowed_down_and_an_honest_node_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = world(tmp_path)
    monkeypatch.setattr("echo_hub.rollouts.keeper.REJECTIONS_AT_ONCE", 4)
    monkeypatch.setattr("echo_hub.rollouts.keeper.REJECTIONS_PER_S", 1e-6)

    async def body(front: Front, ledger: Ledger) -> None:
        bad, good = Node(front, "bad"), Node(front, "good")
        told = [(await bad.submit(b"nonsense")).code for _ in range(4)]
        assert told == ["bad_envelope"] * 4
        with trio.move_on_after(0.2) as scope:
            await bad.submit(b"nonsense")
        assert scope.cancelled_caught
        await good.work(12)

    scene.run(body)
