"""What is read from the ledger's tables: where a run stands, and the facts that `status` shows."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Integer, Row, func, select, true

from echo_hub.audit.sequential import NodeEvidence
from echo_hub.ledger.decisions import read_quarantines
from echo_hub.ledger.guard import GuardState, guard_facts, read_guard
from echo_hub.ledger.schema import (
    dialogues,
    evaluations,
    groups,
    leases,
    nodes,
    standings,
    unfinished,
    updates,
    verdicts,
)
from echo_hub.ledger.swarm import count_accusers, read_accusations, read_spreads
from echo_hub.publish.spread import Spread, summary_of
from echo_hub.rollouts.curriculum import History, by_task, latest
from echo_hub.rollouts.evaluation import Evaluated
from echo_hub.rollouts.leases import OpenLease
from echo_hub.rollouts.reputation import Record

_LOOK_BACK = 20  # updates


@dataclass(frozen=True)
class PublishedVersion:
    """A version that was announced, and the manifest's envelope it was announced with."""

    version: int
    envelope: bytes


@dataclass(frozen=True)
class StoredGroup:
    """An acknowledged group that nothing has consumed yet. `rewards` None: not yet scored;
    `audited`: it was derived again, and passed."""

    group_id: int
    lease: OpenLease
    version: int
    envelope: bytes
    rewards: list[float] | None
    audited: bool = False


@dataclass(frozen=True)
class Recovered:
    """Where a run stands, read from its ledger at start. `version` is None in a new one.

    `next_index` is the first train prompt never leased (`history` says it by arm), `returned` are
    those to be leased again; `verdicts` are counts of groups and rollouts by (node, code); `lags`
    counts consumed groups; `quarantines` says why a node is in one; `dialogues` is what the hub has
    said, by lease.
    """

    version: int | None
    published: PublishedVersion | None
    published_versions: frozenset[int]
    evaluated: list[Evaluated]
    secret: bytes
    next_index: int
    returned: list[int]
    open_leases: list[OpenLease]
    groups: list[StoredGroup]
    verdicts: list[tuple[bytes, str, int, int]]
    lags: Counter[int]
    standings: list[tuple[bytes, Record]]
    spreads: list[Spread]
    accusations: list[tuple[bytes, bytes]]
    history: History
    guard: GuardState
    quarantines: dict[bytes, str]
    dialogues: dict[bytes, bytes]


def read_state(
    connection: Connection, secret: bytes, *, stride: int = 1, window: int = 0
) -> Recovered:
    """Where the run stands.

    Args:
        stride: of the numbers of train prompts (`Mixture`); and `window`, of how many groups of
            each arm the rewards are read.
    """
    last_index = connection.scalar(
        select(func.max(leases.c.prompt_index)).where(leases.c.split == "train")
    )
    returned = connection.scalars(
        select(leases.c.prompt_index).where(unfinished(leases, "released"))
    )
    open_leases = connection.execute(select(leases).where(unfinished(leases, "open")))
    return Recovered(
        version=connection.scalar(select(func.max(updates.c.version))),
        published=_newest_published(connection),
        published_versions=frozenset(
            connection.scalars(select(updates.c.version).where(updates.c.manifest.is_not(None)))
        ),
        evaluated=_evaluated(connection),
        secret=secret,
        next_index=0 if last_index is None else last_index + 1,
        returned=sorted(returned),
        open_leases=[_lease(row) for row in open_leases],
        groups=waiting_groups(connection),
        verdicts=[
            (row.node, row.code, row.groups, row.rollouts)
            for row in connection.execute(select(verdicts))
        ],
        lags=_lags(connection),
        standings=read_standings(connection),
        spreads=read_spreads(connection),
        accusations=read_accusations(connection),
        guard=read_guard(connection),
        quarantines=read_quarantines(connection),
        history=_history(connection, stride, window, 0 if last_index is None else last_index + 1),
        dialogues={row.lease_id: row.told for row in connection.execute(select(dialogues))},
    )


def _history(connection: Connection, stride: int, window: int, next_index: int) -> History:
    """What was drawn of each arm, and what the last groups of each scored."""
    arm = leases.c.prompt_index % stride
    trained = leases.c.split == "train"
    drawn = {0: next_index}
    if stride > 1:
        newest = func.max(leases.c.prompt_index)
        query = select(arm, newest).where(trained).group_by(arm)
        drawn = {row[0]: row[1] // stride + 1 for row in connection.execute(query)}
    rewards: defaultdict[int, list[list[float]]] = defaultdict(list)
    if window:
        age = func.row_number().over(partition_by=arm, order_by=groups.c.id.desc())
        scored = (
            select(groups.c.id, groups.c.rewards, arm.label("arm"), age.label("age"))
            .join(leases, leases.c.lease_id == groups.c.lease_id)
            .where(trained, groups.c.rewards.is_not(None))
            .subquery()
        )
        last = select(scored).where(scored.c.age <= window).order_by(scored.c.id)
        for row in connection.execute(last):
            rewards[row.arm].append(row.rewards)
    return History(drawn, rewards)


def read_standings(
    connection: Connection, keys: Sequence[bytes] | None = None
) -> list[tuple[bytes, Record]]:
    """The standing of every key that has one, or of these."""
    query = select(standings)
    if keys is not None:
        query = query.where(standings.c.node.in_(keys))
    return [
        (row.node, Record(row.valid, row.at, row.banned, NodeEvidence.from_json(row.evidence)))
        for row in connection.execute(query)
    ]


@dataclass(frozen=True)
class NodeRow:
    """A node in the ledger: rollouts accepted, and rejected by reason code; groups trained on.

    `accusers` are nodes that say it sent them a bad chunk.
    """

    key: bytes
    record: Record
    accepted: int
    reasons: dict[str, int]
    trained: int
    disputed: int
    last_seen: float | None
    accusers: int

    @property
    def rejected(self) -> int:
        """Rollouts that were rejected, for whatever reason."""
        return sum(self.reasons.values())


def node_rows(connection: Connection) -> list[NodeRow]:
    """Every key that was leased anything, handed anything in, was banned or accused."""
    records = dict(read_standings(connection))
    seen = {row.key: row.last_seen for row in connection.execute(select(nodes))}
    rollouts: defaultdict[bytes, Counter[str]] = defaultdict(Counter)
    for row in connection.execute(select(verdicts)):
        rollouts[row.node][row.code] += row.rollouts
    consumed = (groups.c.state == "consumed") & (groups.c.split == "train")
    counted = select(groups.c.node, func.count(), func.sum(groups.c.disputed.cast(Integer)))
    trained = {
        row[0]: (row[1], row[2])
        for row in connection.execute(counted.where(consumed).group_by(groups.c.node))
    }
    found = []
    accusers = count_accusers(connection)
    for key in records | seen | rollouts | accusers:
        reasons = {code: n for code, n in sorted(rollouts[key].items()) if n}
        accepted = reasons.pop("accepted", 0)
        record = records.get(key, Record())
        trained_on, disputed = trained.get(key, (0, 0))
        found.append(
            NodeRow(
                key=key,
                record=record,
                accepted=accepted,
                reasons=reasons,
                trained=trained_on,
                disputed=disputed,
                last_seen=seen.get(key),
                accusers=accusers[key],
            )
        )
    return found


def _newest_published(connection: Connection) -> PublishedVersion | None:
    row = connection.execute(
        select(updates.c.version, updates.c.manifest)
        .where(updates.c.manifest.is_not(None))
        .order_by(updates.c.version.desc())
        .limit(1)
    ).one_or_none()
    return PublishedVersion(row.version, row.manifest) if row is not None else None


def _evaluated(connection: Connection) -> list[Evaluated]:
    """The last evaluation of each version, the oldest version first."""
    query = select(evaluations.c.detail).order_by(evaluations.c.id)
    found = [Evaluated.from_dict(detail) for detail in connection.scalars(query)]
    return sorted({one.version: one for one in found}.values(), key=lambda one: one.version)


def _lags(connection: Connection) -> Counter[int]:
    lags: Counter[int] = Counter()
    for counts in connection.scalars(select(updates.c.lags)):
        lags.update({int(lag): count for lag, count in counts.items()})
    return lags


def waiting_groups(connection: Connection, ids: Sequence[int] | None = None) -> list[StoredGroup]:
    """The groups that nothing has consumed yet, or those of `ids`, in the order of arrival."""
    wanted = true() if ids is None else groups.c.id.in_(select(_each(ids)))
    query = (
        select(
            groups.c.id.label("group_id"),
            groups.c.version,
            groups.c.envelope,
            groups.c.rewards,
            groups.c.audited,
            *(column for column in leases.c if column.name != "state"),
        )
        .join(leases, leases.c.lease_id == groups.c.lease_id)
        .where(unfinished(groups, "received", "scored"), wanted)
        .order_by(groups.c.id)
    )
    return [
        StoredGroup(row.group_id, _lease(row), row.version, row.envelope, row.rewards, row.audited)
        for row in connection.execute(query)
    ]


def _each(numbers: Sequence[int]) -> Any:
    """A column of these numbers; SQLite bounds the parameters of a statement, and this is one."""
    return func.json_each(json.dumps(list(numbers))).table_valued("value").c.value


def _lease(row: Row[Any]) -> OpenLease:
    return OpenLease(
        lease_id=row.lease_id,
        node=row.node,
        split=row.split,
        index=row.prompt_index,
        group_size=row.group_size,
        seed=row.seed,
        min_version=row.min_version,
        max_version=row.max_version,
        issued_at=row.issued_at,
        expires_at=row.expires_at,
    )


def _tasks(connection: Connection) -> dict[str, dict[str, float]]:
    """The newest metrics of each task: not every update has groups of every task before it."""
    query = select(updates.c.metrics).order_by(updates.c.version.desc()).limit(_LOOK_BACK)
    newest_first = [by_task(metrics) for metrics in connection.scalars(query)]
    return dict(sorted(latest(reversed(newest_first)).items()))


def facts_of(connection: Connection) -> dict[str, object]:
    """The facts of `echo-hub status`, as plain JSON values."""
    last = connection.execute(
        select(updates).order_by(updates.c.version.desc()).limit(1)
    ).one_or_none()
    published = _newest_published(connection)
    evaluated = _evaluated(connection)
    by_code: Counter[str] = Counter()
    for row in connection.execute(select(verdicts.c.code, verdicts.c.rollouts)):
        by_code[row.code] += row.rollouts
    accepted = by_code.pop("accepted", 0)
    waiting = {
        state: connection.scalar(select(func.count()).where(unfinished(groups, state)))
        for state in ("received", "scored")
    }
    return {
        **guard_facts(connection),
        "version": last.version if last is not None else None,
        "published_version": published.version if published is not None else None,
        "last_update_at": last.committed_at if last is not None else None,
        "last_metrics": last.metrics if last is not None else {},
        "tasks": _tasks(connection),
        "heldout_reward": {str(one.version): one.all.reward for one in evaluated},
        "evaluations": [one.as_dict() for one in evaluated],
        "rollouts_accepted": accepted,
        "rollouts_rejected": dict(sorted(by_code.items())),
        "lag_histogram": {str(lag): count for lag, count in sorted(_lags(connection).items())},
        "groups_to_score": waiting["received"],
        "groups_buffered": waiting["scored"],
        "open_leases": connection.scalar(select(func.count()).where(unfinished(leases, "open"))),
        "nodes": connection.scalar(select(func.count()).select_from(nodes)),
        "nodes_banned": connection.scalar(
            select(func.count()).where(standings.c.banned.is_not(None))
        ),
        "nodes_accused": len(count_accusers(connection)),
        "groups_disputed": connection.scalar(select(func.count()).where(groups.c.disputed)),
        "dissemination": summary_of(read_spreads(connection)),
    }
