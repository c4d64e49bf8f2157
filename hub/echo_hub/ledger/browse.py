"""Pages of the ledger for the API: nodes, versions, groups, metrics, events.

Every query is bounded: by a page's length, or by a range of ids that an index serves. What SQLite
can count or sort it does, since Python is not kept from its other threads meanwhile.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Integer, Row, func, select, text

from echo_hub.ledger.reads import read_standings
from echo_hub.ledger.schema import evaluations, events, groups, updates
from echo_hub.rollouts.evaluation import Evaluated
from echo_hub.rollouts.reputation import Record

NODE_SORTS = ("accepted", "rejected", "last_seen", "first_seen", "valid")


@dataclass(frozen=True)
class NodeLine:
    """A node as the ledger knows it; `rejected` by reason code, in rollouts."""

    key: bytes
    record: Record
    accepted: int
    rejected: dict[str, int]
    first_seen: float | None
    last_seen: float | None
    accusers: int


_KNOWN = """
  SELECT key FROM nodes UNION SELECT node FROM standings UNION SELECT node FROM verdicts
  UNION SELECT accused FROM accusations{also}
"""
_NODES = """
WITH counted AS (
  SELECT node, sum(CASE WHEN code = 'accepted' THEN rollouts ELSE 0 END) AS accepted,
         sum(CASE WHEN code = 'accepted' THEN 0 ELSE rollouts END) AS rejected
  FROM verdicts{of_these} GROUP BY node),
known AS ({known})
SELECT known.key AS key, coalesce(accepted, 0) AS accepted, coalesce(rejected, 0) AS rejected,
       first_seen, last_seen, coalesce(valid, 0) AS valid, banned,
       (SELECT count(*) FROM accusations WHERE accused = known.key) AS accusers,
       count(*) OVER () AS total
FROM known LEFT JOIN counted ON counted.node = known.key
LEFT JOIN nodes ON nodes.key = known.key LEFT JOIN standings ON standings.node = known.key
"""
_FEW = 500  # keys that are named in a query; more of them are handed over as one parameter


def _literals(keys: Iterable[bytes], form: str = "{}") -> str:
    return ", ".join(form.format(f"x'{key.hex()}'") for key in keys)


def _known(also: Iterable[bytes]) -> str:
    rows = _literals(also, "({})")
    more = f" UNION SELECT column1 FROM (VALUES {rows})"  # noqa: S608 - only hexadecimal digits
    return _KNOWN.format(also=more if rows else "")


def known_keys(connection: Connection, also: Iterable[bytes] = ()) -> list[bytes]:
    """Every key the ledger knows, and `also`."""
    return list(connection.execute(text(_known(also))).scalars())


def node_lines(
    connection: Connection,
    *,
    sort: str = "accepted",
    descending: bool = True,
    offset: int = 0,
    limit: int = 50,
    keys: Sequence[bytes] | None = None,
    but: Sequence[bytes] | None = None,
    banned: bool | None = None,
    also: Iterable[bytes] = (),
) -> tuple[int, list[NodeLine]]:
    """How many nodes there are, and a page of them.

    Args:
        keys: only these; in their order, if `sort` is "given".
        but: not these.
        also: nodes too, though the ledger may know nothing of them yet.
    """
    where: list[str] = []
    values: dict[str, Any] = {"offset": offset, "limit": limit}
    of_these = ""
    if keys is not None and len(keys) <= _FEW:
        these = _literals(keys)
        of_these = f" WHERE node IN ({these})"
        where.append(f"known.key IN ({these})")
    elif keys is not None:
        where.append("hex(known.key) IN (SELECT value FROM json_each(:keys))")
        values["keys"] = json.dumps([key.hex().upper() for key in keys])
    if but is not None:
        where.append("hex(known.key) NOT IN (SELECT value FROM json_each(:but))")
        values["but"] = json.dumps([key.hex().upper() for key in but])
    if banned is not None:
        where.append(f"banned IS {'NOT ' if banned else ''}NULL")
    order = "known.key"
    if sort in NODE_SORTS:
        order = f"{sort} {'DESC' if descending else 'ASC'}, known.key"
    query = _NODES.format(of_these=of_these, known=_known(also))
    query += f"WHERE {' AND '.join(where)}\n" if where else ""
    query += f"ORDER BY {order} LIMIT :limit OFFSET :offset"
    rows = connection.execute(text(query), values).all()
    if not rows:
        return _count(connection, query, values) if offset else 0, []
    return rows[0].total, _with_reasons(connection, rows)


def _count(connection: Connection, query: str, values: dict[str, Any]) -> int:
    first = connection.execute(text(query), values | {"offset": 0, "limit": 1}).first()
    return 0 if first is None else int(first.total)


def _with_reasons(connection: Connection, rows: Sequence[Row[Any]]) -> list[NodeLine]:
    keys = [row.key for row in rows]
    reasons: defaultdict[bytes, dict[str, int]] = defaultdict(dict)
    # written out: so many parameters take longer to bind than the query does
    counted = f"SELECT node, code, rollouts FROM verdicts WHERE node IN ({_literals(keys)})"  # noqa: S608
    for node, code, rollouts in connection.execute(text(f"{counted} ORDER BY code")):
        if rollouts and code != "accepted":
            reasons[node][code] = rollouts
    records = dict(read_standings(connection, keys))
    return [
        NodeLine(
            key=row.key,
            record=records.get(row.key) or Record(),
            accepted=row.accepted,
            rejected=reasons[row.key],
            first_seen=row.first_seen,
            last_seen=row.last_seen,
            accusers=row.accusers,
        )
        for row in rows
    ]


def trained_on(connection: Connection, key: bytes) -> tuple[int, int]:
    """Groups of a node that were trained on, and those of them that are disputed."""
    query = select(func.count(), func.sum(groups.c.disputed.cast(Integer))).where(
        groups.c.node == key, groups.c.state == "consumed", groups.c.split == "train"
    )
    row = connection.execute(query).one()
    return row[0], row[1] or 0


# --- versions -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class VersionLine:
    """An update as the ledger has it."""

    version: int
    at: float
    published_at: float | None
    metrics: dict[str, float]
    lags: dict[str, int]


def version_lines(
    connection: Connection,
    *,
    before: int | None = None,
    after: int | None = None,
    limit: int = 50,
) -> list[VersionLine]:
    """Versions between `after` and `before`, both left out, newest first."""
    query = select(
        updates.c.version,
        updates.c.committed_at,
        updates.c.published_at,
        updates.c.metrics,
        updates.c.lags,
    ).order_by(updates.c.version.desc())
    if before is not None:
        query = query.where(updates.c.version < before)
    if after is not None:
        query = query.where(updates.c.version > after)
    return [VersionLine(*row) for row in connection.execute(query.limit(limit))]


def evaluated(connection: Connection, versions: Sequence[int] | None = None) -> list[Evaluated]:
    """The last evaluation of each version, oldest version first."""
    query = select(evaluations.c.detail).order_by(evaluations.c.id)
    if versions is not None:
        query = query.where(evaluations.c.version.in_(versions))
    found = [Evaluated.from_dict(detail) for detail in connection.scalars(query)]
    return sorted({one.version: one for one in found}.values(), key=lambda one: one.version)


def count_versions(connection: Connection) -> int:
    """How many versions there are, version 0 among them."""
    return connection.scalar(select(func.count()).select_from(updates)) or 0


@dataclass(frozen=True)
class PublishedSize:
    """Bytes of a version as it was announced, and of the delta to it, if there was one."""

    size: int
    delta_size: int | None


def published_sizes(connection: Connection, versions: Sequence[int]) -> dict[int, PublishedSize]:
    """What was announced of these versions, of those of which it was written down."""
    query = text(
        "SELECT json_extract(detail, '$.version'), json_extract(detail, '$.size'),"
        " json_extract(detail, '$.delta_size') FROM events WHERE kind = 'published' AND"
        " json_extract(detail, '$.version') BETWEEN :least AND :most"
    )
    if not versions:
        return {}
    bounds = {"least": min(versions), "most": max(versions)}
    rows = connection.execute(query, bounds)
    return {row[0]: PublishedSize(row[1], row[2]) for row in rows if row[1] is not None}


# --- metrics ------------------------------------------------------------------------------------


def metric_names(connection: Connection, look_back: int = 200) -> list[str]:
    """Names of the metrics of the last updates."""
    query = text(
        "SELECT DISTINCT j.key FROM (SELECT metrics FROM updates ORDER BY version DESC LIMIT :n) u,"
        " json_each(u.metrics) j ORDER BY 1"
    )
    return [row[0] for row in connection.execute(query, {"n": look_back})]


def series(
    connection: Connection, name: str, *, first: int, last: int, step: int
) -> list[tuple[int, float, float, float, float]]:
    """(version, at, mean, least, greatest) of a metric, for each `step` updates."""
    query = text(
        "SELECT min(version), min(committed_at), avg(v), min(v), max(v) FROM (SELECT version,"
        " committed_at, json_extract(metrics, :path) AS v FROM updates"
        " WHERE version BETWEEN :first AND :last)"
        " WHERE v IS NOT NULL GROUP BY (version - :first) / :step ORDER BY 1"
    )
    values = {"path": json_path(name), "first": first, "last": last, "step": step}
    return [tuple(row) for row in connection.execute(query, values)]


def json_path(name: str) -> str:
    """SQLite's path of a key, dots and all."""
    return f'$."{name}"'


# --- groups -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GroupLine:
    """A group with its lease's prompt."""

    group_id: int
    lease_id: bytes
    node: bytes
    split: str
    prompt_index: int
    version: int
    envelope: bytes
    received_at: float
    state: str
    reason: str | None
    rewards: list[float] | None
    update_no: int | None
    audited: bool
    disputed: bool


@dataclass(frozen=True)
class Wanted:
    """Which groups; None wants all. Rewards are of a group's best answer."""

    node: bytes | None = None
    version: int | None = None
    split: str | None = None
    state: str | None = None
    reason: str | None = None
    least: float | None = None
    most: float | None = None


_BEST = "(SELECT max(value) FROM json_each(rewards))"
_WORST = "(SELECT min(value) FROM json_each(rewards))"
_LINE = (
    "SELECT g.id AS group_id, g.lease_id, g.node, g.split, l.prompt_index, g.version, g.envelope,"
    " g.received_at, g.state, g.reason, g.rewards, g.update_no, g.audited, g.disputed"
)


def group_lines(
    connection: Connection,
    wanted: Wanted,
    *,
    before: int | None,
    limit: int,
    look_at: int,
    sort: str = "newest",
) -> tuple[list[GroupLine], int | None, int]:
    """Groups that are wanted, among the `look_at` groups with ids below `before`.

    Returns them, the id to go on below (None at the end), and how many were looked at. `sort` is
    newest, best or worst; the last two look at all of these and have no next page.
    """
    newest = connection.scalar(select(func.max(groups.c.id))) or 0
    top = newest + 1 if before is None else min(before, newest + 1)
    where = ["g.id < :top"]
    values: dict[str, Any] = {"top": top, "limit": limit, "floor": max(0, top - look_at)}
    if wanted.node is None:
        where.append("g.id >= :floor")
    else:
        where.append("g.node = :node")
    for name in ("node", "version", "split", "state", "reason"):
        value = getattr(wanted, name)
        if value is not None:
            values[name] = value
            if name != "node":
                where.append(f"g.{name} = :{name}")
    if wanted.least is not None:
        where.append(f"{_BEST} >= :least")
        values["least"] = wanted.least
    if wanted.most is not None:
        where.append(f"{_WORST} <= :most")
        values["most"] = wanted.most
    order = {"best": f"{_BEST} DESC, g.id DESC", "worst": f"{_WORST} ASC, g.id DESC"}
    if sort != "newest":
        where.append("g.rewards IS NOT NULL")
    query = (
        f"{_LINE} FROM groups g JOIN leases l ON l.lease_id = g.lease_id"
        f" WHERE {' AND '.join(where)} ORDER BY {order.get(sort, 'g.id DESC')} LIMIT :limit"
    )
    found = [_line(row) for row in connection.execute(text(query), values)]
    if sort != "newest":
        return found, None, min(look_at, top - 1)
    if len(found) == limit:
        last = found[-1].group_id
        return found, last if last > 1 else None, top - last
    floor = 0 if wanted.node is not None else values["floor"]
    return found, floor if floor > 1 else None, top - max(1, floor)


def group_line(connection: Connection, group_id: int) -> GroupLine | None:
    """One group."""
    query = f"{_LINE} FROM groups g JOIN leases l ON l.lease_id = g.lease_id WHERE g.id = :group_id"
    row = connection.execute(text(query), {"group_id": group_id}).one_or_none()
    return None if row is None else _line(row)


def _line(row: Row[Any]) -> GroupLine:
    values = dict(row._mapping)
    values["rewards"] = None if values["rewards"] is None else json.loads(values["rewards"])
    return GroupLine(
        **values | {"audited": bool(values["audited"]), "disputed": bool(values["disputed"])}
    )


# --- events -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EventLine:
    id: int
    at: float
    kind: str
    detail: dict[str, Any]


def event_lines(
    connection: Connection,
    *,
    before: int | None = None,
    limit: int = 100,
    kinds: Sequence[str] | None = None,
    look_at: int = 20_000,
) -> list[EventLine]:
    """Events below an id, newest first; of some kinds, among the last `look_at` of them."""
    newest = connection.scalar(select(func.max(events.c.id))) or 0
    top = newest + 1 if before is None else min(before, newest + 1)
    query = select(events).where(events.c.id < top, events.c.id >= top - look_at)
    if kinds is not None:
        query = query.where(events.c.kind.in_(kinds))
    rows = connection.execute(query.order_by(events.c.id.desc()).limit(limit))
    return [EventLine(row.id, row.at, row.kind, row.detail) for row in rows]


def events_after(connection: Connection, after: int, limit: int) -> list[EventLine]:
    """Events above an id, oldest first."""
    query = select(events).where(events.c.id > after).order_by(events.c.id).limit(limit)
    return [EventLine(row.id, row.at, row.kind, row.detail) for row in connection.execute(query)]
