"""The ledger's tables, and how its SQLite file is opened.

States. A lease is `open`, then `answered`, or `released` (its prompt waits to be leased again), or
`spent` (nothing is left to do for it). A group is `received`, then `scored`, then `consumed` by an
update or an evaluation; or `dropped` for a reason. docs/architecture.md draws both. A consumed
group is `disputed` if its node was banned and no audit had passed it. `requests` are what an
operator's command wants of a hub that is serving (`control.actions`), and what came of it; `node`
and `why` are of an older form. `quarantines`, `annotations` and `pins` are what operators decided
about nodes and versions, `audits` what deriving a group again found.
`dialogues` holds what the hub's own task has said in a lease, until its group is scored or the
lease is over. `spreads` has a line for each artifact, with the fields of `spread.Spread`;
`accusations` one for each pair of nodes of which one says that the other sent it a bad chunk.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    ColumnElement,
    Connection,
    Engine,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    UniqueConstraint,
    create_engine,
    insert,
    literal_column,
    or_,
    select,
)
from sqlalchemy.exc import DatabaseError
from sqlalchemy.pool import QueuePool

from echo_p2p.errors import LedgerError

SCHEMA = 6
_OLDER = "5"  # of which this one has all tables, and more
_BUSY_MS = 10_000
_WAL_PAGES = 4000  # between checkpoints: 16 MiB

metadata = MetaData()


def unfinished(table: Table, *states: str) -> ColumnElement[bool]:
    """`state` is one of these, written so that SQLite knows the partial index of them to serve.

    It compares a query's condition with the index's word for word: literals and OR, no IN.
    """
    return or_(*(table.c.state == literal_column(f"'{state}'") for state in states))


meta = Table(
    "meta",
    metadata,
    Column("key", String, primary_key=True),
    Column("value", String, nullable=False),
)

nodes = Table(
    "nodes",
    metadata,
    Column("key", LargeBinary, primary_key=True),
    Column("first_seen", Float, nullable=False),
    Column("last_seen", Float, nullable=False),
    sqlite_with_rowid=False,
)

leases = Table(
    "leases",
    metadata,
    Column("lease_id", LargeBinary, primary_key=True),
    Column("node", LargeBinary, nullable=False),
    Column("split", String, nullable=False),
    Column("prompt_index", Integer, nullable=False),
    Column("group_size", Integer, nullable=False),
    Column("seed", Integer, nullable=False),
    Column("min_version", Integer, nullable=False),
    Column("max_version", Integer),
    Column("issued_at", Float, nullable=False),
    Column("expires_at", Float, nullable=False),
    Column("state", String, nullable=False),
    sqlite_with_rowid=False,
)
Index("leases_by_prompt", leases.c.split, leases.c.prompt_index)
Index("leases_unfinished", leases.c.state, sqlite_where=unfinished(leases, "open", "released"))

dialogues = Table(
    "dialogues",
    metadata,
    Column("lease_id", LargeBinary, primary_key=True),
    Column("told", LargeBinary, nullable=False),
    sqlite_with_rowid=False,
)

groups = Table(
    "groups",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("lease_id", LargeBinary, nullable=False, unique=True),
    Column("node", LargeBinary, nullable=False),
    Column("split", String, nullable=False),
    Column("version", Integer, nullable=False),
    Column("rollouts", Integer, nullable=False),
    Column("tokens", Integer, nullable=False, server_default="0"),
    Column("envelope", LargeBinary, nullable=False),
    Column("received_at", Float, nullable=False),
    Column("state", String, nullable=False),
    Column("reason", String),
    Column("rewards", JSON(none_as_null=True)),
    Column("update_no", Integer),
    Column("audited", Boolean, nullable=False, default=False),
    Column("disputed", Boolean, nullable=False, default=False),
)
Index("groups_by_node", groups.c.node)
Index("groups_unfinished", groups.c.state, sqlite_where=unfinished(groups, "received", "scored"))

updates = Table(
    "updates",
    metadata,
    Column("version", Integer, primary_key=True),
    Column("metrics", JSON, nullable=False),
    Column("lags", JSON, nullable=False),
    Column("committed_at", Float, nullable=False),
    Column("manifest", LargeBinary),
    Column("published_at", Float),
)
Index("updates_published", updates.c.version, sqlite_where=updates.c.manifest.is_not(None))

evaluations = Table(
    "evaluations",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("version", Integer, nullable=False),
    Column("reward", Float, nullable=False),
    Column("prompts", Integer, nullable=False),
    Column("detail", JSON, nullable=False),
    Column("at", Float, nullable=False),
)

verdicts = Table(
    "verdicts",
    metadata,
    Column("node", LargeBinary, primary_key=True),
    Column("code", String, primary_key=True),
    Column("groups", Integer, nullable=False),
    Column("rollouts", Integer, nullable=False),
    sqlite_with_rowid=False,
)

standings = Table(
    "standings",
    metadata,
    Column("node", LargeBinary, primary_key=True),
    Column("valid", Float, nullable=False),
    Column("at", Float, nullable=False),
    Column("banned", String),
    Column("evidence", String, nullable=False),
    sqlite_with_rowid=False,
)

vouchers = Table(
    "vouchers",
    metadata,
    Column("machine", LargeBinary, primary_key=True),
    Column("person", LargeBinary, nullable=False),
    Column("name", String, nullable=False),
    Column("at", Float, nullable=False),
    sqlite_with_rowid=False,
)

requests = Table(
    "requests",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("node", LargeBinary),
    Column("why", String),
    Column("done", Boolean, nullable=False, default=False),
    Column("request", String),
    Column("outcome", JSON(none_as_null=True)),
)
Index("requests_open", requests.c.id, sqlite_where=requests.c.done.is_(False))

quarantines = Table(
    "quarantines",
    metadata,
    Column("node", LargeBinary, primary_key=True),
    Column("why", String, nullable=False),
    Column("at", Float, nullable=False),
    sqlite_with_rowid=False,
)

node_words = Table(
    "annotations",
    metadata,
    Column("node", LargeBinary, primary_key=True),
    Column("name", String, nullable=False),
    Column("note", String, nullable=False),
    sqlite_with_rowid=False,
)

pins = Table(
    "pins",
    metadata,
    Column("version", Integer, primary_key=True),
    Column("at", Float, nullable=False),
)

audits = Table(
    "audits",
    metadata,
    Column("group_id", Integer, primary_key=True),
    Column("max_margin", Float, nullable=False),
    Column("max_logprob_difference", Float, nullable=False),
    Column("mismatches", Integer, nullable=False),
    Column("tokens", Integer, nullable=False),
)

spreads = Table(
    "spreads",
    metadata,
    Column("artifact", LargeBinary, primary_key=True),
    Column("kind", String, nullable=False),
    Column("version", Integer, nullable=False),
    Column("size", Integer, nullable=False),
    Column("at", Float, nullable=False),
    Column("expected", Integer, nullable=False),
    Column("reached", Integer, nullable=False),
    Column("nodes", Integer, nullable=False),
    Column("half_s", Float),
    Column("most_s", Float),
    Column("last_s", Float),
    Column("hub_bytes", Integer, nullable=False),
    Column("from_hub", Integer, nullable=False),
    Column("from_peers", Integer, nullable=False),
)
Index("spreads_by_time", spreads.c.at)

accusations = Table(
    "accusations",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("accused", LargeBinary, nullable=False),
    Column("accuser", LargeBinary, nullable=False),
    Column("at", Float, nullable=False),
    UniqueConstraint("accused", "accuser"),
)

events = Table(
    "events",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("at", Float, nullable=False),
    Column("kind", String, nullable=False),
    Column("detail", JSON, nullable=False),
)
Index("events_by_kind", events.c.kind)


def open_engine(path: Path, *, read_only: bool) -> Engine:
    """An engine on the ledger file: WAL, and every commit on the disk before it returns."""

    def connect() -> sqlite3.Connection:
        mode = "ro" if read_only else "rwc"
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode={mode}", uri=True, check_same_thread=False
        )
        connection.execute(f"PRAGMA busy_timeout = {_BUSY_MS}")
        if not read_only:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute(f"PRAGMA wal_autocheckpoint = {_WAL_PAGES}")
        return connection

    # what this URL would choose by itself closes other threads' connections once there are six
    return create_engine("sqlite://", creator=connect, poolclass=QueuePool, max_overflow=-1)


@contextmanager
def database_errors(path: Path) -> Iterator[None]:
    """Says of a database error which ledger it is about."""
    try:
        yield
    except DatabaseError as error:
        raise LedgerError(
            f"cannot use {path} as a ledger: {error.orig}.",
            fix="Is it a run's ledger, undamaged, and its folder writable with space left?",
        ) from error


def is_empty(connection: Connection) -> bool:
    """True of a database that nothing was ever created in."""
    return not connection.exec_driver_sql("SELECT count(*) FROM sqlite_master").scalar()


def check_schema(connection: Connection, path: Path) -> dict[str, str]:
    """The ledger's `meta`; LedgerError if it is of another schema."""
    facts = {row.key: row.value for row in connection.execute(select(meta))}
    if facts.get("schema") != str(SCHEMA):
        raise LedgerError(
            f"{path} has ledger schema {facts.get('schema')}; this program knows {SCHEMA}.",
            fix="Serve it with the version of echo-p2p that made it.",
        )
    return facts


def upgrade_schema(connection: Connection) -> None:
    """Bring the ledger of an earlier version of this program up to date, all or nothing."""
    known = select(meta.c.value).where(meta.c.key == "schema")
    if connection.scalar(known) != _OLDER:
        return
    metadata.create_all(connection)
    for index in events.indexes:
        index.create(connection, checkfirst=True)
    for column in ("request VARCHAR", "outcome JSON"):
        connection.exec_driver_sql(f"ALTER TABLE requests ADD COLUMN {column}")
    connection.exec_driver_sql("ALTER TABLE groups ADD COLUMN tokens INTEGER DEFAULT 0 NOT NULL")
    connection.execute(meta.update().where(meta.c.key == "schema").values(value=str(SCHEMA)))


def create_schema(connection: Connection, facts: dict[str, str]) -> None:
    """Make the tables of a new ledger, all or none, with `facts` in its `meta`."""
    connection.exec_driver_sql("BEGIN")  # the driver begins nothing by itself before a CREATE
    metadata.create_all(connection)
    rows = [{"key": key, "value": value} for key, value in {"schema": str(SCHEMA), **facts}.items()]
    connection.execute(insert(meta), rows)
