"""A run's updates, evaluations and contributors over all its time, as its model card tells them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, select

from echo_hub.ledger.reads import NodeRow, node_rows
from echo_hub.ledger.schema import evaluations, updates


@dataclass(frozen=True)
class UpdateRow:
    """An update: the version it made, the mean reward of its rollouts, Unix seconds."""

    version: int
    reward: float | None
    at: float


@dataclass(frozen=True)
class History:
    """All updates in order (version 0 is among them), held-out rewards by version, the nodes."""

    updates: list[UpdateRow]
    evaluations: Mapping[int, float]
    nodes: list[NodeRow]


def history_of(connection: Connection) -> History:
    """The history that a ledger holds."""
    made = select(updates.c.version, updates.c.metrics, updates.c.committed_at)
    judged = select(evaluations.c.version, evaluations.c.reward).order_by(evaluations.c.id)
    return History(
        updates=[
            UpdateRow(row.version, row.metrics.get("reward_mean"), row.committed_at)
            for row in connection.execute(made.order_by(updates.c.version))
        ],
        evaluations={row.version: row.reward for row in connection.execute(judged)},
        nodes=node_rows(connection),
    )
