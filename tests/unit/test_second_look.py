"""A refused batch is audited: whose lies explain it pays for them, and nobody else does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import select
from test_front import HONEST, Node, World, config, until

from echo_hub.guarding import Guarding
from echo_hub.learner.guard import Why
from echo_hub.learner.messages import Audited
from echo_hub.ledger.guard import GuardState
from echo_hub.ledger.ledger import Ledger
from echo_hub.ledger.schema import groups as rows
from echo_hub.rollouts.assess import Group
from echo_hub.rollouts.buffer import ScoredGroup
from echo_hub.rollouts.front import Front
from echo_p2p.errors import UpdateRefusedError

REFUSED = UpdateRefusedError("its nodes and the learner differ.", why=Why.MISMATCH, back_to=0)
LIES = Audited(max_margin=0.0, max_logprob_difference=24.0, mismatches=0, tokens=9)


def guarding(front: Front, ledger: Ledger) -> Guarding:
    return Guarding(
        front=front,
        ledger=ledger,
        recovered=GuardState(),
        refusals=3,
        clock=lambda: 0.0,
        on_news=lambda: None,
    )


def lies_of(node: Node) -> Any:
    def found(group: Group) -> Audited:
        return LIES if group.lease.node == node.key else HONEST

    return found


async def unaudited(front: Front, *parts: tuple[Node, int]) -> list[ScoredGroup]:
    """A batch of which chance chose no group for an audit."""
    front._assessor.probability = lambda _: 0.0
    for node, count in parts:
        await node.work(count)
    return await front.take_batch()


def state_of(ledger: Ledger, batch: Sequence[ScoredGroup]) -> list[tuple[str, str | None, bool]]:
    """Of each group: its state, why it was dropped, whether an audit passed it."""
    ids = [group.group_id for group in batch]
    with ledger._engine.connect() as connection:
        query = select(rows.c.state, rows.c.reason, rows.c.audited).where(rows.c.id.in_(ids))
        return [tuple(row) for row in connection.execute(query.order_by(rows.c.id))]


def test_lies_explain_a_refusal_and_the_others_are_trained_on(tmp_path: Path) -> None:
    scene = World(tmp_path)

    async def body(front: Front, ledger: Ledger) -> None:
        liar, honest = Node(front, "liar"), Node(front, "honest")
        guard = guarding(front, ledger)
        scene.evidence = lies_of(liar)
        for number in range(1, 5):  # more often than unexplained refusals may be in a row
            batch = await unaudited(front, (liar, 1), (honest, 3 if number == 1 else 0))
            assert await guard.refused(0, batch, REFUSED) is None  # nor does the learner go back
            assert sorted(state_of(ledger, batch)) == [
                ("dropped", "audit_logprob", False),
                *[("scored", None, True)] * 3,
            ]
            assert len(scene.audited) == 3 + number  # nothing twice
            assert front.snapshot().training == 0
            assert front.snapshot().buffered == 3
            assert guard.notices[-1].facts["false"] == 1
        assert guard.pause is None
        assert front.snapshot().rollouts_rejected == {"audit_logprob": 8}
        assert front._keeper.reputation.valid(liar.key, 0.0) == 0
        assert front._keeper.reputation.valid(honest.key, 0.0) == 3
        await honest.work(1)
        batch = await front.take_batch()
        assert {group.node for group in batch} == {honest.key}
        assert front.snapshot().lag_histogram == {0: 4}  # each counted once

    scene.run(body)


def test_a_banned_liar_takes_along_what_an_audit_had_passed(tmp_path: Path) -> None:
    scene = World(tmp_path, config(audit={"floor": 1.0, "ban": True}))

    async def body(front: Front, ledger: Ledger) -> None:
        liar, honest = Node(front, "liar"), Node(front, "honest")
        await liar.work(2)  # which are audited, and pass
        await until(front, lambda now: now.buffered == 2)
        batch = await unaudited(front, (liar, 1), (honest, 1))
        scene.evidence = lies_of(liar)
        await guarding(front, ledger).refused(0, batch, REFUSED)
        assert front.is_banned(liar.key)
        assert not front.is_banned(honest.key)
        assert state_of(ledger, batch) == [
            *[("dropped", "banned", True)] * 2,
            ("dropped", "audit_logprob", False),
            ("scored", None, True),
        ]
        assert front.snapshot().buffered == 1

    scene.run(body)


def test_a_refusal_that_no_lie_explains_drops_its_batch(tmp_path: Path) -> None:
    scene = World(tmp_path)

    async def body(front: Front, ledger: Ledger) -> None:
        node, guard = Node(front), guarding(front, ledger)
        for number in range(1, 4):
            assert guard.pause is None
            if number == 3:  # what cannot be audited explains nothing
                scene.evidence = lambda _: None
            batch = await unaudited(front, (node, 4))
            assert await guard.refused(0, batch, REFUSED) == 0
            assert state_of(ledger, batch) == [("dropped", "learner_refused", number < 3)] * 4
        assert guard.pause is not None
        assert front._keeper.reputation.valid(node.key, 0.0) == 12
        now = front.snapshot()
        assert (now.buffered, now.training, now.lag_histogram) == (0, 0, {})

    scene.run(body)


def test_what_goes_back_is_trained_on_only_if_it_is_fresh(tmp_path: Path) -> None:
    scene = World(tmp_path)

    async def body(front: Front, ledger: Ledger) -> None:
        liar, honest = Node(front, "liar"), Node(front, "honest")
        scene.evidence = lies_of(liar)
        batch = await unaudited(front, (liar, 1), (honest, 3))
        await guarding(front, ledger).refused(0, batch, REFUSED)
        front.advance(3, published=True)  # lag 3, where 2 is allowed
        await honest.work(4, version=3)
        assert {group.version for group in await front.take_batch()} == {3}
        assert state_of(ledger, batch)[1:] == [("dropped", "stale", True)] * 3

    scene.run(body)
