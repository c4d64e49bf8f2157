"""The ledger's part on what operators ask for and decided, and on what audits found.

Requests are left by commands beside a hub that serves, and done by it. Everything else here is
written by whoever has the ledger locked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import trio
from sqlalchemy import Connection, Engine, delete, insert, select, update
from sqlalchemy.dialects.sqlite import insert as upsert

from echo_hub.control.actions import Any as AnyAction
from echo_hub.control.actions import Ban, ResumeRun, Unban, from_json
from echo_hub.learner.messages import Audited
from echo_hub.ledger.schema import audits, node_words, pins, quarantines, requests
from echo_hub.ledger.writer import Writer

R = TypeVar("R")


@dataclass(frozen=True)
class Request:
    """What an operator's command asks of the hub that serves."""

    request_id: int
    action: AnyAction


@dataclass(frozen=True)
class Outcome:
    """What became of a request: a sentence, or why it could not be done and what to do then."""

    sentence: str = ""
    error: str = ""
    fix: str = ""


@dataclass(frozen=True)
class Annotation:
    """An operator's words for a node."""

    name: str = ""
    note: str = ""


class Decisions:
    """Writes and reads decisions for the one process that has a ledger open."""

    def __init__(
        self,
        writer: Writer,
        engine: Engine,
        readers: trio.CapacityLimiter,
        clock: Callable[[], float],
    ) -> None:
        self._writer = writer
        self._engine = engine
        self._readers = readers
        self._clock = clock

    async def open_requests(self) -> list[Request]:
        """What operators' commands asked for and is not done yet."""
        return await self._look(open_requests)

    async def request_done(self, request: Request, outcome: Outcome) -> None:
        """An operator's request was carried out, or could not be."""
        await self._writer.write(_requests_done, (request.request_id, outcome))

    async def quarantine(self, node: bytes, why: str | None) -> None:
        """A node is in quarantine from now on, or, without a `why`, not any more."""
        await self._writer.write(_put_quarantines, (node, why, self._clock()))

    async def annotate(self, node: bytes, words: Annotation) -> None:
        """An operator's words for a node."""
        await self._writer.write(_put_annotations, (node, words))

    async def pin(self, version: int, *, pinned: bool) -> None:
        """A version's checkpoint is kept for good, or no longer than others."""
        await self._writer.write(_put_pins, (version, pinned, self._clock()))

    async def pins(self) -> frozenset[int]:
        """The pinned versions."""
        return await self._look(read_pins)

    async def add_audit(self, group_id: int, found: Audited) -> None:
        """What an audit of a group found."""
        await self._writer.write(_add_audits, (group_id, found))

    async def _look(self, look: Callable[[Connection], R]) -> R:
        def work() -> R:
            with self._engine.connect() as connection:
                return look(connection)

        return await trio.to_thread.run_sync(work, limiter=self._readers)


# --- reading --------------------------------------------------------------------------------------


def open_requests(connection: Connection) -> list[Request]:
    """What operators asked for and the hub has not done yet."""
    query = select(requests).where(requests.c.done.is_(False)).order_by(requests.c.id)
    return [
        Request(row.id, _action(row.request, row.node, row.why))
        for row in connection.execute(query)
    ]


def _action(request: str | None, node: bytes | None, why: str | None) -> AnyAction:
    if request is not None:
        return from_json(request)
    if node is None:  # as an earlier version of this program wrote them
        return ResumeRun()
    return Unban(node) if why is None else Ban(node, why)


def read_outcome(connection: Connection, request_id: int) -> Outcome | None:
    """What became of a request; None if it is not done yet."""
    query = select(requests.c.done, requests.c.outcome).where(requests.c.id == request_id)
    row = connection.execute(query).one()
    return Outcome(**(row.outcome or {})) if row.done else None


def read_quarantines(connection: Connection) -> dict[bytes, str]:
    """Why each node is in quarantine that is."""
    return {row.node: row.why for row in connection.execute(select(quarantines))}


def read_annotations(connection: Connection) -> dict[bytes, Annotation]:
    """The operator's words for each node that has some."""
    rows = connection.execute(select(node_words))
    return {row.node: Annotation(row.name, row.note) for row in rows}


def read_pins(connection: Connection) -> frozenset[int]:
    """The pinned versions."""
    return frozenset(connection.scalars(select(pins.c.version)))


def read_audit(connection: Connection, group_id: int) -> Audited | None:
    """What an audit of a group found; None if there was none."""
    query = select(audits).where(audits.c.group_id == group_id)
    row = connection.execute(query).one_or_none()
    if row is None:
        return None
    return Audited(
        max_margin=row.max_margin,
        max_logprob_difference=row.max_logprob_difference,
        mismatches=row.mismatches,
        tokens=row.tokens,
    )


# --- writing --------------------------------------------------------------------------------------


def ask(connection: Connection, request: str) -> int:
    """An operator wants something done, as `actions.to_json` says. The request's id."""
    done = connection.execute(insert(requests), {"request": request})
    key = done.inserted_primary_key
    assert key is not None
    return int(key[0])


def _requests_done(connection: Connection, rows: list[tuple[int, Outcome]]) -> None:
    for request_id, outcome in rows:
        done = update(requests).where(requests.c.id == request_id)
        connection.execute(done.values(done=True, outcome=dict(vars(outcome))))


def _put_quarantines(connection: Connection, rows: list[tuple[bytes, str | None, float]]) -> None:
    for node, why, at in rows:
        connection.execute(delete(quarantines).where(quarantines.c.node == node))
        if why is not None:
            connection.execute(insert(quarantines), {"node": node, "why": why, "at": at})


def _put_annotations(connection: Connection, rows: list[tuple[bytes, Annotation]]) -> None:
    for node, words in rows:
        connection.execute(delete(node_words).where(node_words.c.node == node))
        if words != Annotation():
            connection.execute(insert(node_words), {"node": node, **vars(words)})


def _put_pins(connection: Connection, rows: list[tuple[int, bool, float]]) -> None:
    for version, pinned, at in rows:
        connection.execute(delete(pins).where(pins.c.version == version))
        if pinned:
            connection.execute(insert(pins), {"version": version, "at": at})


def _add_audits(connection: Connection, rows: Sequence[tuple[int, Audited]]) -> None:
    values = [
        {
            "group_id": group_id,
            "max_margin": _finite(found.max_margin),
            "max_logprob_difference": _finite(found.max_logprob_difference),
            "mismatches": found.mismatches,
            "tokens": found.tokens,
        }
        for group_id, found in rows
    ]
    statement = upsert(audits)
    changes = {name: statement.excluded[name] for name in values[0] if name != "group_id"}
    connection.execute(statement.on_conflict_do_update(set_=changes), values)


def _finite(value: float) -> float:
    """SQLite has no NaN, and JSON no infinity: a difference that is neither is enormous."""
    return value if math.isfinite(value) else 1e30


# --- beside a hub that may be serving -------------------------------------------------------------


def leave_request(path: Path, request: str) -> int:
    """Ask the hub that serves the ledger, or that will, to do something. The request's id."""
    from echo_hub.ledger.ledger import beside

    with beside(path, read_only=False) as connection:
        return ask(connection, request)


def outcome_of(path: Path, request_id: int) -> Outcome | None:
    """What became of a request; None if it is not done yet."""
    from echo_hub.ledger.ledger import beside

    with beside(path) as connection:
        return read_outcome(connection, request_id)
