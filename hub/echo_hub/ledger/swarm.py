"""The ledger's part on how artifacts spread, and on who reports whom: writing and reading."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, fields

from sqlalchemy import Connection, func, insert, select
from sqlalchemy.dialects.sqlite import insert as upsert

from echo_hub.ledger.schema import accusations, spreads
from echo_hub.publish.spread import MOST_PAST, Spread

_COLUMNS = [field.name for field in fields(Spread)]


def put_spreads(connection: Connection, rows: list[Sequence[Spread]]) -> None:
    """These artifacts have got so far."""
    values = [asdict(spread) for row in rows for spread in row]
    if values:
        statement = upsert(spreads)
        changes = {name: statement.excluded[name] for name in _COLUMNS if name != "artifact"}
        connection.execute(statement.on_conflict_do_update(set_=changes), values)


def read_spreads(connection: Connection) -> list[Spread]:
    """The last versions, oldest first, and then the base."""
    columns = select(*(spreads.c[name] for name in _COLUMNS))
    base = columns.where(spreads.c.kind == "base")
    last = columns.where(spreads.c.kind != "base").order_by(spreads.c.at.desc())
    newest_first = connection.execute(last.limit(MOST_PAST)).all()
    found = [*reversed(newest_first), *connection.execute(base)]
    return [Spread(**row._mapping) for row in found]


def add_accusations(connection: Connection, rows: list[tuple[bytes, bytes, float]]) -> None:
    """Of each: the accused key, the accusing one, and when."""
    names = ("accused", "accuser", "at")
    connection.execute(insert(accusations), [dict(zip(names, row, strict=True)) for row in rows])


def read_accusations(connection: Connection) -> list[tuple[bytes, bytes]]:
    """Pairs of accused and accuser, in the order in which they came."""
    query = select(accusations.c.accused, accusations.c.accuser).order_by(accusations.c.id)
    return [(row.accused, row.accuser) for row in connection.execute(query)]


def count_accusers(connection: Connection) -> Counter[bytes]:
    """How many nodes accuse each that is accused."""
    query = select(accusations.c.accused, func.count()).group_by(accusations.c.accused)
    return Counter({row[0]: row[1] for row in connection.execute(query)})
