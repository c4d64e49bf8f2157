"""A directory in a process of its own, spoken to over a pipe.

Promises: every call ends within its deadline, with an answer or a `DirectoryError`; calls may
overlap; when the directory process dies, waiting and later calls raise what it said last, and
`lost` is set. The caller's own scope is never cancelled: a directory is never fatal. The process,
and p2pd under it, end with the block, and end by themselves if we are killed.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import trio

from echo_p2p.directory.messages import (
    Command,
    Failed,
    Find,
    Found,
    Open,
    Opened,
    Publish,
    Published,
    Reply,
)
from echo_p2p.directory.records import check_record, newer, record_id
from echo_p2p.envelope import open_envelope
from echo_p2p.errors import DirectoryError, ProcessError, WireError
from echo_p2p.nursery import open_nursery
from echo_p2p.pipes import Child, child_process
from echo_p2p.wire import RunRecord

log = logging.getLogger(__name__)

_PROCESS = "echo_p2p.directory.process"
_MAX_WAITING = 256

R = TypeVar("R", bound=Reply)


class HivemindDirectory:
    """hivemind's DHT as a `Directory`. Made by `open_directory`."""

    def __init__(self, child: Child, deadline_s: float) -> None:
        self.addresses: tuple[str, ...] = ()
        """Where others can dial this directory peer, each ending in /p2p/<peer id>."""
        self.lost = trio.Event()
        """Set when the directory process is gone."""
        self._child = child
        self._deadline_s = deadline_s
        self._why_lost = ""
        self._numbers = itertools.count(1)
        self._waiting: dict[int, trio.MemorySendChannel[Reply]] = {}
        self._outgoing, self._outbox = trio.open_memory_channel[Command](_MAX_WAITING)
        self._newest: dict[bytes, RunRecord] = {}

    @property
    def pid(self) -> int:
        """The directory process."""
        return self._child.pid

    async def publish(self, record: bytes) -> None:
        """Store an envelope holding a `RunRecord`; DirectoryError if no peer keeps it."""
        try:
            opened = open_envelope(record, RunRecord)
        except WireError as error:
            raise DirectoryError(f"this is no run record: {error}") from error
        place = record_id(opened.message.run_id, opened.key)
        expiry = opened.message.expires_at
        published = await self._call(
            lambda number: Publish(number=number, place=place, envelope=record, expiry=expiry),
            Published,
        )
        if not published.copies:
            raise DirectoryError(
                f"no directory peer keeps the record of run {opened.message.run_id}, version "
                f"{opened.message.version}: each has a newer one, or did not answer."
            )

    async def find(self, run_id: str, hub_key: bytes) -> RunRecord | None:
        """The newest record this hub key signed for this run; never older than one found before."""
        place = record_id(run_id, hub_key)
        found = await self._call(lambda number: Find(number=number, place=place), Found)
        now = time.time()
        if found.envelope is not None:
            record = check_record(place, found.envelope, expiry=found.expiry, now=now)
            known = self._newest.get(place)
            if known is None or newer(record, known):
                self._newest[place] = record
        newest = self._newest.get(place)
        return newest if newest is not None and newest.expires_at > now else None

    async def _call(self, make: Callable[[int], Command], kind: type[R]) -> R:
        if self.lost.is_set():
            raise DirectoryError(self._why_lost)
        number = next(self._numbers)
        command = make(number)
        send, receive = trio.open_memory_channel[Reply](1)
        self._waiting[number] = send
        try:
            self._outgoing.send_nowait(command)
            with trio.fail_after(self._deadline_s):
                reply = await receive.receive()
        except trio.WouldBlock as error:
            raise DirectoryError(f"{_MAX_WAITING} directory calls are waiting already.") from error
        except trio.TooSlowError as error:
            raise DirectoryError(
                f"the directory did not answer {type(command).__name__} in {self._deadline_s:g} s."
            ) from error
        finally:
            del self._waiting[number]
        if isinstance(reply, Failed):
            raise DirectoryError(reply.message)
        assert isinstance(reply, kind)
        return reply

    async def _write(self) -> None:
        async for command in self._outbox:
            try:
                await self._child.send(command)
            except ProcessError:
                return  # `_read` tells everybody

    async def _read(self) -> None:
        try:
            while True:
                reply: Reply = await self._child.receive(Reply)  # type: ignore[arg-type]
                waiting = self._waiting.get(reply.number)
                if waiting is not None:  # else it came after its deadline
                    waiting.send_nowait(reply)
        except (ProcessError, WireError) as error:
            self._why_lost = str(error)
        self.lost.set()
        for number, waiting in self._waiting.items():
            waiting.send_nowait(Failed(number=number, message=self._why_lost))


@asynccontextmanager
async def open_directory(
    *,
    listen: Sequence[str] = (),
    announce: Sequence[str] = (),
    initial_peers: Sequence[str] = (),
    client_only: bool = False,
    identity_path: Path | None = None,
    deadline_s: float,
) -> AsyncIterator[HivemindDirectory]:
    """Run a directory peer for the length of the block.

    Args:
        listen: multiaddrs to listen on; none with `client_only`.
        announce: multiaddrs told to others instead of the listened ones, without /p2p.
        initial_peers: peers to join at, each ending in /p2p/<peer id>. A peer that serves starts
            without them and joins when they are there; a client needs one that answers.
        client_only: look up and publish, but listen nowhere and keep nothing for others.
        identity_path: key file (`ensure_directory_identity`) that makes the peer id last.
        deadline_s: for the start, and for each call.

    Raises:
        DirectoryError: it did not start, or not in time; the message says why.
    """

    def options(number: int) -> Open:
        return Open(
            number=number,
            listen=() if client_only else tuple(listen),
            announce=tuple(announce),
            initial_peers=tuple(initial_peers),
            client_only=client_only,
            identity_path=None if identity_path is None else str(identity_path),
        )

    async with (
        child_process(_PROCESS, name="the directory process", stderr_line=log.debug) as child,
        open_nursery() as nursery,
    ):
        directory = HivemindDirectory(child, deadline_s)
        nursery.start_soon(directory._read)
        nursery.start_soon(directory._write)
        try:
            opened = await directory._call(options, Opened)
            directory.addresses = opened.addresses
            yield directory
        finally:
            nursery.cancel_scope.cancel()
