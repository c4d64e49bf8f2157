"""What is written to the ledger's tables, inside a transaction of the caller's.

Each function takes all rows of one kind that share a commit, so that many small writes become one
statement.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import (
    ColumnElement,
    Connection,
    bindparam,
    case,
    delete,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.dialects.sqlite import insert as upsert

from echo_hub.ledger.schema import (
    dialogues,
    evaluations,
    events,
    groups,
    leases,
    meta,
    nodes,
    standings,
    unfinished,
    updates,
    verdicts,
)
from echo_hub.rollouts.evaluation import Evaluated
from echo_hub.rollouts.leases import OpenLease
from echo_hub.rollouts.reputation import Record
from echo_p2p.errors import LedgerError

_ACCEPTED = "accepted"
_BANNED = "banned"
_IDS_IN_ONE_STATEMENT = 500


@dataclass(frozen=True)
class NewGroup:
    """A group that passed the cheap checks."""

    group_id: int
    lease: OpenLease
    version: int
    rollouts: int
    tokens: int
    envelope: bytes
    at: float


@dataclass(frozen=True)
class Ban:
    """A key is banned; `group_ids` and `leases` are those of its that still wait.

    `group_ids` None: the ledger knows them, since no hub is running.
    """

    node: bytes
    record: Record
    group_ids: list[int] | None
    leases: list[OpenLease]


def remember(connection: Connection, rows: list[tuple[str, str]]) -> None:
    values = [{"key": key, "value": value} for key, value in rows]
    connection.execute(upsert(meta).on_conflict_do_nothing(), values)


def add_event(connection: Connection, rows: list[tuple[float, str, dict[str, object]]]) -> None:
    values = [{"at": at, "kind": kind, "detail": detail} for at, kind, detail in rows]
    connection.execute(insert(events), values)


# --- leases -------------------------------------------------------------------------------------


def add_leases(connection: Connection, rows: list[Sequence[OpenLease]]) -> None:
    granted = [lease for row in rows for lease in row]
    if not granted:
        return
    spend = (
        update(leases)
        .where(leases.c.split == "train", leases.c.prompt_index == bindparam("index"))
        .where(leases.c.state == "released")
        .values(state="spent")
    )
    again = [{"index": lease.index} for lease in granted if lease.split == "train"]
    if again:
        connection.execute(spend, again)
    connection.execute(
        insert(leases),
        [
            {
                "lease_id": lease.lease_id,
                "node": lease.node,
                "split": lease.split,
                "prompt_index": lease.index,
                "group_size": lease.group_size,
                "seed": lease.seed,
                "min_version": lease.min_version,
                "max_version": lease.max_version,
                "issued_at": lease.issued_at,
                "expires_at": lease.expires_at,
                "state": "open",
            }
            for lease in granted
        ],
    )
    seen = upsert(nodes)
    connection.execute(
        seen.on_conflict_do_update(set_={"last_seen": seen.excluded.last_seen}),
        [
            {"key": lease.node, "first_seen": lease.issued_at, "last_seen": lease.issued_at}
            for lease in {lease.node: lease for lease in granted}.values()
        ],
    )


def _end_leases(connection: Connection, ended: Iterable[OpenLease]) -> None:
    values = [
        # a held-out prompt is leased again within its evaluation, and never after a restart
        {"id": lease.lease_id, "new": "released" if lease.split == "train" else "spent"}
        for lease in ended
    ]
    if values:
        statement = update(leases).where(leases.c.lease_id == bindparam("id"))
        connection.execute(statement.values(state=bindparam("new")), values)


def release_leases(connection: Connection, rows: list[Sequence[OpenLease]]) -> None:
    _end_leases(connection, (lease for row in rows for lease in row))


def put_dialogues(connection: Connection, rows: list[tuple[bytes, bytes]]) -> None:
    """What the hub has said so far in leases."""
    statement = upsert(dialogues)
    latest = {lease_id: {"lease_id": lease_id, "told": told} for lease_id, told in rows}
    connection.execute(
        statement.on_conflict_do_update(set_={"told": statement.excluded.told}),
        list(latest.values()),
    )


def drop_dialogues(connection: Connection, rows: list[bytes]) -> None:
    """Nobody needs these any more."""
    statement = delete(dialogues).where(dialogues.c.lease_id == bindparam("id"))
    connection.execute(statement, [{"id": lease_id} for lease_id in rows])


# --- groups -------------------------------------------------------------------------------------


def add_groups(connection: Connection, rows: list[NewGroup]) -> None:
    connection.execute(
        insert(groups),
        [
            {
                "id": row.group_id,
                "lease_id": row.lease.lease_id,
                "node": row.lease.node,
                "split": row.lease.split,
                "version": row.version,
                "rollouts": row.rollouts,
                "tokens": row.tokens,
                "envelope": row.envelope,
                "received_at": row.at,
                "state": "received",
            }
            for row in rows
        ],
    )
    connection.execute(
        update(leases).where(leases.c.lease_id == bindparam("id")).values(state="answered"),
        [{"id": row.lease.lease_id} for row in rows],
    )
    count_verdicts(connection, [(row.lease.node, _ACCEPTED, 1, row.rollouts) for row in rows])


def set_scored(connection: Connection, rows: list[tuple[int, list[float], bool]]) -> None:
    statement = update(groups).where(
        groups.c.id == bindparam("group"), groups.c.state == "received"
    )
    connection.execute(
        statement.values(
            state="scored", rewards=bindparam("new_rewards"), audited=bindparam("was_audited")
        ),
        [
            {"group": group_id, "new_rewards": rewards, "was_audited": audited}
            for group_id, rewards, audited in rows
        ],
    )


def set_audited(connection: Connection, rows: list[list[int]]) -> None:
    """These groups were scored, and now an audit has passed them too."""
    for group_ids in rows:
        for some in _slices(group_ids):
            connection.execute(update(groups).where(groups.c.id.in_(some)).values(audited=True))


def drop_groups(connection: Connection, rows: list[tuple[list[int], str, list[OpenLease]]]) -> None:
    for group_ids, code, released in rows:
        counts: list[tuple[bytes, str, int, int]] = []
        for some in _slices(group_ids):
            found = groups.c.id.in_(some) & groups.c.state.in_(["received", "scored"])
            for row in connection.execute(
                select(groups.c.node, func.count(), func.sum(groups.c.rollouts))
                .where(found)
                .group_by(groups.c.node)
            ):
                counts += [(row[0], _ACCEPTED, -row[1], -row[2]), (row[0], code, row[1], row[2])]
            connection.execute(update(groups).where(found).values(state="dropped", reason=code))
        count_verdicts(connection, counts)
        _end_leases(connection, released)


def count_verdicts(connection: Connection, rows: list[tuple[bytes, str, int, int]]) -> None:
    """Add to the counts of (node, code): groups and rollouts."""
    totals: dict[tuple[bytes, str], list[int]] = {}
    for node, code, group_count, rollout_count in rows:
        total = totals.setdefault((node, code), [0, 0])
        total[0] += group_count
        total[1] += rollout_count
    if not totals:
        return
    statement = upsert(verdicts)
    connection.execute(
        statement.on_conflict_do_update(
            set_={
                "groups": verdicts.c.groups + statement.excluded.groups,
                "rollouts": verdicts.c.rollouts + statement.excluded.rollouts,
            }
        ),
        [
            {"node": node, "code": code, "groups": total[0], "rollouts": total[1]}
            for (node, code), total in totals.items()
        ],
    )


# --- standing -----------------------------------------------------------------------------------


def put_standings(connection: Connection, rows: list[Sequence[tuple[bytes, Record]]]) -> None:
    values = [
        {
            "node": node,
            "valid": record.valid,
            "at": record.at,
            "banned": record.banned,
            "evidence": record.evidence.to_json(),
        }
        for row in rows
        for node, record in row
    ]
    if values:
        statement = upsert(standings)
        connection.execute(
            statement.on_conflict_do_update(
                set_={
                    name: statement.excluded[name] for name in ("valid", "at", "banned", "evidence")
                }
            ),
            values,
        )


def ban(connection: Connection, rows: list[Ban]) -> None:
    """Keys are shut out: what waits of theirs is dropped, what was trained on is disputed."""
    for row in rows:
        put_standings(connection, [[(row.node, row.record)]])
        if row.group_ids is None:
            _drop_all_of(connection, row.node)
        else:
            drop_groups(connection, [(row.group_ids, _BANNED, row.leases)])
        _dispute(connection, groups.c.node == row.node)


def _drop_all_of(connection: Connection, node: bytes) -> None:
    """Drop the groups of a key that nothing has consumed, and have their prompts leased again."""
    waiting = unfinished(groups, "received", "scored")
    found = select(groups.c.id).where(waiting, groups.c.node == node)
    drop_groups(connection, [(list(connection.scalars(found)), _BANNED, [])])
    connection.execute(
        update(leases)
        .where(leases.c.node == node, unfinished(leases, "open"))
        .values(state=case((leases.c.split == "train", "released"), else_="spent"))
    )


def unban(connection: Connection, rows: list[tuple[bytes, Record]]) -> None:
    put_standings(connection, [rows])
    for node, _ in rows:
        connection.execute(update(groups).where(groups.c.node == node).values(disputed=False))


def _dispute(connection: Connection, which: ColumnElement[bool]) -> None:
    """Mark consumed groups of banned keys that no audit had passed."""
    banned = select(standings.c.node).where(standings.c.banned.is_not(None))
    connection.execute(
        update(groups)
        .where(which, groups.c.state == "consumed", groups.c.audited.is_(False))
        .where(groups.c.split == "train", groups.c.node.in_(banned))
        .values(disputed=True)
    )


# --- versions -----------------------------------------------------------------------------------


def add_version(connection: Connection, rows: list[tuple[int, float]]) -> None:
    connection.execute(
        upsert(updates).on_conflict_do_nothing(),
        [
            {"version": version, "metrics": {}, "lags": {}, "committed_at": at}
            for version, at in rows
        ],
    )


def commit_update(
    connection: Connection, rows: list[tuple[int, list[int], dict[str, float], float]]
) -> None:
    for version, group_ids, metrics, at in rows:
        lags: Counter[int] = Counter()
        for some in _slices(group_ids):
            found = groups.c.id.in_(some) & (groups.c.state == "scored")
            for row in connection.execute(select(groups.c.version).where(found)):
                lags[version - 1 - row.version] += 1
            connection.execute(
                update(groups).where(found).values(state="consumed", update_no=version)
            )
        _dispute(connection, groups.c.update_no == version)
        if lags.total() != len(group_ids):
            raise LedgerError(
                f"the update to version {version} names {len(group_ids)} groups, of which "
                f"{lags.total()} are waiting to be consumed."
            )
        connection.execute(
            insert(updates),
            {
                "version": version,
                "metrics": metrics,
                "lags": {str(lag): count for lag, count in sorted(lags.items())},
                "committed_at": at,
            },
        )


def publish(connection: Connection, rows: list[tuple[int, bytes, float]]) -> None:
    for version, envelope, at in rows:
        done = connection.execute(
            update(updates)
            .where(updates.c.version == version, updates.c.manifest.is_(None))
            .values(manifest=envelope, published_at=at)
        )
        if done.rowcount != 1:
            raise LedgerError(f"version {version} was never committed, or is published already.")


def add_evaluation(connection: Connection, rows: list[tuple[Evaluated, float]]) -> None:
    values = [
        {
            "version": found.version,
            "reward": found.all.reward,
            "prompts": found.all.prompts,
            "detail": found.as_dict(),
            "at": at,
        }
        for found, at in rows
    ]
    connection.execute(insert(evaluations), values)


def consume_evaluated(connection: Connection, rows: list[list[int]]) -> None:
    for group_ids in rows:
        for some in _slices(group_ids):
            connection.execute(
                update(groups)
                .where(groups.c.id.in_(some), groups.c.state == "scored")
                .values(state="consumed")
            )


def end_interrupted_evaluations(connection: Connection, rows: list[str]) -> None:
    """Close what belongs to evaluations that nobody waits for any more."""
    waiting = unfinished(groups, "received", "scored")
    interrupted = select(groups.c.id).where(waiting, groups.c.split == "heldout")
    ids = list(connection.execute(interrupted).scalars())
    drop_groups(connection, [(ids, rows[0], [])])
    connection.execute(
        update(leases)
        .where(unfinished(leases, "open"), leases.c.split == "heldout")
        .values(state="spent")
    )


def _slices(ids: list[int]) -> Iterable[list[int]]:
    """SQLite bounds the parameters of one statement."""
    for start in range(0, len(ids), _IDS_IN_ONE_STATEMENT):
        yield ids[start : start + _IDS_IN_ONE_STATEMENT]
