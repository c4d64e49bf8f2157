"""Group commit: one thread writes, and many waiting callers share one transaction.

Promises: `write` returns only when its row is committed, on the disk; rows are applied in the
order of the calls; a row that cannot be applied fails its own caller and no other one. A write
cannot be cancelled half-way: its caller would not know whether it is in the ledger.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import groupby
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import trio
from sqlalchemy import Connection, Engine

from echo_p2p.errors import LedgerError

_MOST_IN_ONE_COMMIT = 2000

R = TypeVar("R")
Apply = Callable[[Connection, list[R]], None]
"""Writes rows of one kind inside the transaction it is given."""


@dataclass
class _Write:
    apply: Apply[Any]
    row: Any
    done: trio.Event = field(default_factory=trio.Event)
    token: trio.lowlevel.TrioToken = field(default_factory=trio.lowlevel.current_trio_token)
    error: Exception | None = None


class Writer:
    """The only writer of a ledger."""

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine = engine
        self._name = name
        self._queue: SimpleQueue[_Write | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="ledger", daemon=True)
        self._thread.start()

    async def write(self, apply: Apply[R], row: R) -> None:
        """Commit one row; LedgerError if it cannot be."""
        if not self._thread.is_alive():
            raise LedgerError(f"{self._name} is closed.")
        write = _Write(apply, row)
        self._queue.put(write)
        with trio.CancelScope(shield=True):
            await write.done.wait()
        if isinstance(write.error, LedgerError):
            raise write.error
        if write.error is not None:
            why = getattr(write.error, "orig", None) or write.error  # without SQLAlchemy's advice
            raise LedgerError(
                f"{self._name} cannot be written: {why}.",
                fix="Is the disk full, or the folder no longer writable?",
            ) from write.error

    def close(self) -> None:
        """Commit what is queued and end the thread."""
        self._queue.put(None)
        self._thread.join()

    def _work(self) -> None:
        with self._engine.connect() as connection:
            closing = False
            while not closing:
                batch = [self._queue.get()]
                try:
                    while len(batch) < _MOST_IN_ONE_COMMIT:
                        batch.append(self._queue.get_nowait())
                except Empty:
                    pass
                closing = None in batch
                writes = [write for write in batch if write is not None]
                if writes:
                    self._commit(connection, writes)
                    _wake(writes)

    def _commit(self, connection: Connection, writes: list[_Write]) -> None:
        try:
            with connection.begin():
                for apply, run in groupby(writes, key=lambda write: write.apply):
                    apply(connection, [write.row for write in run])
        except Exception as error:  # noqa: BLE001 - raised again in the caller that waits for it
            if len(writes) == 1:
                writes[0].error = error
                return
            for write in writes:  # one of them is to blame; the others shall not suffer
                self._commit(connection, [write])


def _wake(writes: list[_Write]) -> None:
    def wake() -> None:
        for write in writes:
            write.done.set()

    try:
        writes[0].token.run_sync_soon(wake)
    except trio.RunFinishedError:
        return  # nobody waits any more
