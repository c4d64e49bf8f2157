"""The hub's ledger: what was leased, handed in, decided, trained on and published. The truth.

Promises:

- what a method here has returned from is on the disk (SQLite, WAL, synchronous=FULL), whatever
  happens to the process afterwards;
- a lease is answered by one group at most, and a group is consumed by one update at most;
- an update and the groups it consumed are committed together or not at all;
- one hub at a time: the file is locked. Readers (`read_facts`) disturb nobody, and others write
  nothing but requests to the hub, which SQLite itself keeps apart from the hub's writing.

The ledger holds the run's secret, so its file has mode 0600.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import trio
from sqlalchemy import Connection, Engine, func, select

from echo_hub.ledger import guard as guard_rows
from echo_hub.ledger import rows
from echo_hub.ledger import swarm as swarm_rows
from echo_hub.ledger.credit import (
    Given,
    Vouched,
    first_seen,
    given_by,
    put_vouchers,
    voucher_of,
)
from echo_hub.ledger.decisions import Decisions
from echo_hub.ledger.guard import Pause
from echo_hub.ledger.history import History, history_of
from echo_hub.ledger.reads import (
    NodeRow,
    PublishedVersion,
    Recovered,
    StoredGroup,
    facts_of,
    node_rows,
    read_state,
    waiting_groups,
)
from echo_hub.ledger.schema import (
    check_schema,
    create_schema,
    database_errors,
    groups,
    is_empty,
    leases,
    meta,
    open_engine,
    upgrade_schema,
)
from echo_hub.ledger.writer import Writer
from echo_hub.publish.spread import Spread
from echo_hub.rollouts.checks import ClosedLease, Code
from echo_hub.rollouts.evaluation import Evaluated
from echo_hub.rollouts.leases import OpenLease
from echo_hub.rollouts.reputation import Record
from echo_p2p.errors import LedgerError

__all__ = ["Ledger", "PublishedVersion", "Recovered", "StoredGroup", "read_facts"]


_MOST_READERS = 4  # the engine's pool of connections has one more, for the writer


class Ledger:
    """A run's ledger, open for writing. Made by `Ledger.open`."""

    def __init__(self, path: Path, engine: Engine, secret: bytes, clock: Callable[[], float]):
        self.path = path
        self._engine = engine
        self._secret = secret
        self._clock = clock
        self._writer = Writer(engine, str(path))
        self._readers = trio.CapacityLimiter(_MOST_READERS)
        self.decisions = Decisions(self._writer, engine, self._readers, clock)
        with engine.connect() as connection:
            self._last_group = connection.scalar(select(func.max(groups.c.id))) or 0

    @classmethod
    @asynccontextmanager
    async def open(
        cls, path: Path, run_id: str, *, clock: Callable[[], float] = time.time
    ) -> AsyncIterator[Ledger]:
        """Open the ledger of a run, or make it; LedgerError if it is another's or in use."""
        with ExitStack() as stack:
            stack.callback(os.close, _lock(path))
            _make_private(path)
            engine = open_engine(path, read_only=False)
            stack.callback(engine.dispose)
            ledger = cls(path, engine, _check_or_create(engine, path, run_id), clock)
            stack.callback(ledger._writer.close)
            yield ledger

    # --- facts of the run ---------------------------------------------------------------------

    async def remember(self, key: str, value: str) -> str:
        """Keep a fact of the run if there is none of that name; returns the one that is kept."""
        await self._writer.write(rows.remember, (key, value))
        with self._engine.connect() as connection:
            return str(connection.scalar(select(meta.c.value).where(meta.c.key == key)))

    async def begin(self) -> None:
        """The run has its version 0."""
        await self._writer.write(rows.add_version, (0, self._clock()))

    async def record_event(self, kind: str, **detail: object) -> None:
        """Something an operator may want to look up later."""
        await self._writer.write(rows.add_event, (self._clock(), kind, detail))

    # --- leases -------------------------------------------------------------------------------

    async def add_leases(self, granted: Sequence[OpenLease]) -> None:
        """Leases are about to be handed out."""
        await self._writer.write(rows.add_leases, granted)

    async def release_leases(self, released: Sequence[OpenLease]) -> None:
        """Leases expired, were given back, or were spoilt by a rejected answer."""
        await self._writer.write(rows.release_leases, released)

    async def closed_lease(self, lease_id: bytes) -> ClosedLease | None:
        """What is known of a lease that is no longer open; None if it never was."""

        def look() -> ClosedLease | None:
            # a lease's state says what is left to do for it; if its group was dropped, no longer
            # that it was answered
            query = (
                select(leases.c.node, groups.c.id)
                .outerjoin(groups, groups.c.lease_id == leases.c.lease_id)
                .where(leases.c.lease_id == lease_id)
            )
            with self._engine.connect() as connection:
                row = connection.execute(query).one_or_none()
            return ClosedLease(row.node, answered=row.id is not None) if row is not None else None

        return await trio.to_thread.run_sync(look, limiter=self._readers)

    async def put_dialogue(self, lease_id: bytes, told: bytes) -> None:
        """What the hub has said so far in an open lease."""
        await self._writer.write(rows.put_dialogues, (lease_id, told))

    async def drop_dialogue(self, lease_id: bytes) -> None:
        """What was said in a lease is of no use any more."""
        await self._writer.write(rows.drop_dialogues, lease_id)

    # --- groups -------------------------------------------------------------------------------

    async def add_group(
        self, lease: OpenLease, *, version: int, rollouts: int, tokens: int, envelope: bytes
    ) -> int:
        """A group passed the cheap checks: keep it, and close its lease. Returns its id.

        `tokens` are those that the policy sampled, over all its rollouts.
        """
        self._last_group += 1
        group_id = self._last_group
        row = rows.NewGroup(group_id, lease, version, rollouts, tokens, envelope, self._clock())
        await self._writer.write(rows.add_groups, row)
        return group_id

    async def set_scored(
        self, group_id: int, rewards: Sequence[float], *, audited: bool = False
    ) -> None:
        """A group has its rewards and passed every check, the audit among them if `audited`."""
        await self._writer.write(rows.set_scored, (group_id, list(rewards), audited))

    async def set_audited(self, group_ids: Sequence[int]) -> None:
        """Groups that were scored without an audit have passed one after all."""
        await self._writer.write(rows.set_audited, list(group_ids))

    async def stored_groups(self, group_ids: Sequence[int]) -> list[StoredGroup]:
        """Of these groups, those that nothing has consumed, as they were handed in."""

        def look() -> list[StoredGroup]:
            with self._engine.connect() as connection:
                return waiting_groups(connection, group_ids)

        return await trio.to_thread.run_sync(look, limiter=self._readers)

    async def drop_groups(
        self, group_ids: Sequence[int], code: str, *, release: Sequence[OpenLease] = ()
    ) -> None:
        """Groups will never be trained on; the prompts of `release` are to be leased again."""
        await self._writer.write(rows.drop_groups, (list(group_ids), str(code), list(release)))

    async def count_rejected(self, node: bytes, code: str, rollouts: int) -> None:
        """A submission was rejected at the door."""
        await self._writer.write(rows.count_verdicts, (node, str(code), 1, rollouts))

    # --- credit -------------------------------------------------------------------------------

    async def put_voucher(self, vouched: Vouched) -> None:
        """A person vouched for a machine."""
        await self._writer.write(put_vouchers, vouched)

    async def voucher_of(self, machine: bytes) -> Vouched | None:
        """The newest voucher for a machine."""

        def look() -> Vouched | None:
            with self._engine.connect() as connection:
                return voucher_of(connection, machine)

        return await trio.to_thread.run_sync(look, limiter=self._readers)

    async def credit_of(self, node: bytes) -> tuple[Given, Vouched | None, float | None]:
        """What a node has given, who vouched for it, and since when it works."""

        def look() -> tuple[Given, Vouched | None, float | None]:
            with self._engine.connect() as connection:
                return (
                    given_by(connection, node),
                    voucher_of(connection, node),
                    first_seen(connection, node),
                )

        return await trio.to_thread.run_sync(look, limiter=self._readers)

    # --- standing -----------------------------------------------------------------------------

    async def put_standings(self, records: Sequence[tuple[bytes, Record]]) -> None:
        """The standing of these keys is now so."""
        await self._writer.write(rows.put_standings, records)

    async def ban(
        self,
        node: bytes,
        record: Record,
        *,
        group_ids: Sequence[int] | None = None,
        leases: Sequence[OpenLease] = (),
    ) -> None:
        """A key is banned: these groups of its are dropped, and these leases released; all that
        wait or are open, if no groups are named.

        What was trained on of it without an audit is marked as disputed.
        """
        ids = None if group_ids is None else list(group_ids)
        await self._writer.write(rows.ban, rows.Ban(node, record, ids, list(leases)))

    async def unban(self, node: bytes) -> None:
        """A key may come back, without standing; nothing of it is disputed any more."""
        await self._writer.write(rows.unban, (node, Record()))

    async def pause(self, pause: Pause) -> None:
        """The run is paused, also after a restart."""
        await self._writer.write(guard_rows.put_facts, guard_rows.paused(pause))

    async def resume(self, version: int) -> None:
        """An operator lets the run go on from this version."""
        await self._writer.write(guard_rows.put_facts, guard_rows.resumed(version))

    # --- versions -----------------------------------------------------------------------------

    async def commit_update(
        self, version: int, group_ids: Sequence[int], metrics: Mapping[str, float]
    ) -> None:
        """The update to `version` consumed these groups: all of it is kept, or nothing."""
        row = (version, list(group_ids), dict(metrics), self._clock())
        await self._writer.write(rows.commit_update, row)

    async def record_publication(self, version: int, envelope: bytes) -> None:
        """A version is about to be announced with this manifest envelope."""
        await self._writer.write(rows.publish, (version, envelope, self._clock()))

    async def record_evaluation(self, found: Evaluated) -> None:
        """Reward of a version on the held-out prompts."""
        await self._writer.write(rows.add_evaluation, (found, self._clock()))

    async def consume_evaluated(self, group_ids: Sequence[int]) -> None:
        """Groups of held-out prompts have served their evaluation."""
        await self._writer.write(rows.consume_evaluated, list(group_ids))

    # --- how they spread ----------------------------------------------------------------------

    async def put_spreads(self, known: Sequence[Spread]) -> None:
        """These artifacts have got so far."""
        await self._writer.write(swarm_rows.put_spreads, known)

    async def add_accusation(self, accused: bytes, accuser: bytes) -> None:
        """A node says for the first time that another sent it a bad chunk."""
        await self._writer.write(swarm_rows.add_accusations, (accused, accuser, self._clock()))

    # --- start --------------------------------------------------------------------------------

    async def recover(self, *, stride: int = 1, window: int = 0) -> Recovered:
        """Where the run stands. Evaluations that a crash interrupted are dropped first.

        Args:
            stride, window: as in `read_state`.
        """
        await self._writer.write(rows.end_interrupted_evaluations, Code.INTERRUPTED.value)
        with self._engine.connect() as connection:
            return read_state(connection, self._secret, stride=stride, window=window)


def _lock(path: Path) -> int:
    """Lock a ledger against a second hub; the lock ends with the process, however it ends."""
    lock_path = path.with_name(path.name + ".lock")
    try:
        # a file of its own: closing any descriptor of the database would drop SQLite's locks
        descriptor = os.open(lock_path, os.O_CREAT | os.O_RDWR, 0o600)
    except OSError as error:
        raise LedgerError(f"cannot open {lock_path}: {error.strerror}.") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
        os.close(descriptor)
        raise LedgerError(
            f"{path} is in use by another hub (process {holder or 'unknown'}).",
            fix="Stop that one first; one hub serves a run.",
        ) from error
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def _make_private(path: Path) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    path.chmod(0o600)


def _check_or_create(engine: Engine, path: Path, run_id: str) -> bytes:
    """The run's secret, from the ledger or new."""
    with database_errors(path), engine.begin() as connection:
        if is_empty(connection):
            facts = {"run_id": run_id, "secret": secrets.token_hex(32)}
            create_schema(connection, facts)
        else:
            upgrade_schema(connection)
        facts = check_schema(connection, path)
    if facts["run_id"] != run_id:
        raise LedgerError(
            f"{path} belongs to the run {facts['run_id']!r}, not to {run_id!r}.",
            fix="Serve each run from a folder of its own.",
        )
    return bytes.fromhex(facts["secret"])


# --- beside a hub that may be serving -------------------------------------------------------------


@contextmanager
def beside(path: Path, *, read_only: bool = True) -> Iterator[Connection]:
    """A connection to the ledger that disturbs nobody, for one short transaction."""
    if not path.is_file():
        raise LedgerError(
            f"there is no ledger at {path}.", fix="It is made when the run is first served."
        )
    engine = open_engine(path, read_only=read_only)
    try:
        with database_errors(path), engine.begin() as connection:
            if is_empty(connection):
                raise LedgerError(
                    f"the ledger {path} is empty.",
                    fix="Serving the run fills it; if it was served before, restore a backup.",
                )
            check_schema(connection, path)
            yield connection
    finally:
        engine.dispose()


def read_facts(path: Path) -> dict[str, object]:
    """A run's facts for `echo-hub status`, as plain values."""
    with beside(path) as connection:
        return facts_of(connection)


def read_nodes(path: Path) -> list[NodeRow]:
    """The nodes of a run."""
    with beside(path) as connection:
        return node_rows(connection)


def read_history(path: Path) -> History:
    """A run's updates, evaluations and nodes over all its time."""
    with beside(path) as connection:
        return history_of(connection)


def is_served(path: Path) -> bool:
    """Is a hub serving this ledger now?"""
    if not path.is_file():
        return False
    try:
        os.close(_lock(path))
    except LedgerError:
        return True
    return False


def read_paused(path: Path) -> Pause | None:
    """Why the run is paused, if it is."""
    with beside(path) as connection:
        return guard_rows.read_pause(connection)
