"""The metrics of a run's updates over all its time."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import select

from echo_hub.ledger.ledger import beside
from echo_hub.ledger.schema import updates


def read_metrics(path: Path, after: int = 0) -> list[dict[str, float]]:
    """The metrics of each update in a run's ledger after a version, with its `version` and `at`,
    when it was committed, in Unix seconds."""
    made = select(updates.c.version, updates.c.metrics, updates.c.committed_at)
    with beside(path) as connection:
        rows = connection.execute(made.where(updates.c.version > after).order_by(updates.c.version))
        return [{"version": row.version, "at": row.committed_at, **row.metrics} for row in rows]
