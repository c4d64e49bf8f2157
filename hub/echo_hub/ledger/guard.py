"""What the ledger knows of refusals: versions taken back, and a run that is paused.

A return to an earlier version is an update of its own, which consumed nothing and says in its
metrics, as `rolled_back_to`, whose weights it has. That the run is paused, and at which version an
operator last let it go on, are facts in `meta`.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection, delete, func, select
from sqlalchemy.dialects.sqlite import insert as upsert

from echo_hub.ledger.schema import events, groups, meta, updates

_PAUSE = "pause"
_RESUMED = "resumed_at"
ROLLED_BACK_TO = "rolled_back_to"
REFUSED = "update_refused"


@dataclass(frozen=True)
class Pause:
    """The run is paused at `version`. `why` is a sentence, `at` in Unix seconds."""

    version: int
    why: str
    at: float


@dataclass(frozen=True)
class GuardState:
    """What a restarted hub must know.

    `resumed_at`: the version at which an operator last let a paused run go on. `withdrawn`: those
    whose rollouts are not trained on any more. `batch`: groups that the last update consumed.
    """

    pause: Pause | None = None
    resumed_at: int | None = None
    withdrawn: frozenset[int] = frozenset()
    batch: frozenset[int] = frozenset()


def put_facts(connection: Connection, rows: list[dict[str, str | None]]) -> None:
    """Keep these facts of the run, whatever they were before; None takes one out."""
    for facts in rows:
        for key, value in facts.items():
            if value is None:
                connection.execute(delete(meta).where(meta.c.key == key))
                continue
            statement = upsert(meta).values(key=key, value=value)
            connection.execute(statement.on_conflict_do_update(set_={"value": value}))


def paused(pause: Pause) -> dict[str, str | None]:
    """The facts of a run that is paused."""
    return {_PAUSE: json.dumps(asdict(pause))}


def resumed(version: int) -> dict[str, str | None]:
    """The facts of a run that an operator let go on at a version."""
    return {_PAUSE: None, _RESUMED: str(version)}


def read_guard(connection: Connection) -> GuardState:
    """What a restarted hub must know."""
    resumed_at = connection.scalar(select(meta.c.value).where(meta.c.key == _RESUMED))
    last = connection.scalar(select(func.max(updates.c.version)))
    batch = connection.scalars(select(groups.c.id).where(groups.c.update_no == last))
    return GuardState(
        pause=read_pause(connection),
        resumed_at=None if resumed_at is None else int(resumed_at),
        withdrawn=withdrawn_versions(connection),
        batch=frozenset(batch) if last else frozenset(),
    )


def read_pause(connection: Connection) -> Pause | None:
    """Why the run is paused, if it is."""
    value = connection.scalar(select(meta.c.value).where(meta.c.key == _PAUSE))
    return None if value is None else Pause(**json.loads(value))


def withdrawn_versions(connection: Connection) -> frozenset[int]:
    """Versions that a return to an earlier one has undone."""
    back_to = func.json_extract(updates.c.metrics, f"$.{ROLLED_BACK_TO}")
    rows = connection.execute(select(updates.c.version, back_to).where(back_to.is_not(None)))
    return frozenset(v for version, earlier in rows for v in range(int(earlier) + 1, version))


def guard_facts(connection: Connection) -> dict[str, Any]:
    """What `echo-hub status` says of the guard, as plain JSON values."""
    pause = read_pause(connection)
    seen = list(
        connection.scalars(select(events.c.detail).where(events.c.kind == REFUSED).order_by("id"))
    )
    return {
        "paused": None if pause is None else asdict(pause),
        "updates_refused": dict(Counter(detail["why"] for detail in seen)),
        "last_refusal": seen[-1]["sentence"] if seen else None,
    }
