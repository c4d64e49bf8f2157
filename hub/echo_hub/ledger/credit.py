"""Who gave how much, in the ledger: tokens of accepted groups, and the people behind machines."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, Integer, Row, case, func, select
from sqlalchemy.dialects.sqlite import insert as upsert

from echo_hub.ledger.schema import groups, nodes, vouchers


@dataclass(frozen=True)
class Vouched:
    """A person's word for a machine; a newer one takes an older one's place."""

    machine: bytes
    person: bytes
    name: str
    at: float


@dataclass(frozen=True)
class Given:
    """What a node, or all nodes of a person, have given: see `wire.Credit`."""

    groups: int = 0
    rollouts: int = 0
    tokens: int = 0
    audited_tokens: int = 0


@dataclass(frozen=True)
class Leader:
    """One line of the leader board: a person, or a machine that nobody vouched for."""

    key: bytes
    name: str
    machines: int
    given: Given


_counted = groups.c.state.in_(["scored", "consumed"]) & groups.c.disputed.is_(False)
_sums = (
    func.count(),
    func.sum(groups.c.rollouts),
    func.sum(groups.c.tokens),
    func.sum(case((groups.c.audited.is_(True), groups.c.tokens), else_=0)).cast(Integer),
)


def put_vouchers(connection: Connection, rows: list[Vouched]) -> None:
    """Keep each machine's newest voucher."""
    new = upsert(vouchers)
    connection.execute(
        new.on_conflict_do_update(
            set_={"person": new.excluded.person, "name": new.excluded.name, "at": new.excluded.at},
            where=new.excluded.at >= vouchers.c.at,
        ),
        [{"machine": r.machine, "person": r.person, "name": r.name, "at": r.at} for r in rows],
    )


def voucher_of(connection: Connection, machine: bytes) -> Vouched | None:
    """The newest voucher for a machine."""
    row = connection.execute(select(vouchers).where(vouchers.c.machine == machine)).one_or_none()
    return None if row is None else Vouched(row.machine, row.person, row.name, row.at)


def given_by(connection: Connection, node: bytes) -> Given:
    """What one node has given so far."""
    return _given(connection.execute(select(*_sums).where(_counted, groups.c.node == node)).one())


def first_seen(connection: Connection, node: bytes) -> float | None:
    """When a node was first leased anything."""
    seen: float | None = connection.scalar(select(nodes.c.first_seen).where(nodes.c.key == node))
    return seen


def leaders(connection: Connection, most: int) -> list[Leader]:
    """Who gave most tokens, people with all their machines, best first."""
    key = func.coalesce(vouchers.c.person, groups.c.node)
    machines = func.count(groups.c.node.distinct())
    query = (
        select(key, func.max(func.coalesce(vouchers.c.name, "")), machines, *_sums)
        .outerjoin(vouchers, vouchers.c.machine == groups.c.node)
        .where(_counted)
        .group_by(key)
        .order_by(func.sum(groups.c.tokens).desc(), key)
        .limit(most)
    )
    return [Leader(r[0], r[1], r[2], _given(r[3:])) for r in connection.execute(query)]


def _given(row: Row[tuple[int, ...]] | tuple[int, ...]) -> Given:
    return Given(*(value or 0 for value in row))
