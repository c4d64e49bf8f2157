"""What was asked of the doctor, and the facts that several checks share, gathered once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import trio

from echo_node import software
from echo_node.doctor.findings import Finding
from echo_node.doctor.way import Way, go
from echo_node.fit import Software
from echo_node.hardware.base import Machine
from echo_node.hardware.look import look
from echo_node.limits.book import Book
from echo_node.paths import NodeFolder
from echo_p2p.bootstrap import Bootstrap, RunEntry
from echo_p2p.bootstrap_source import load_bootstrap
from echo_p2p.errors import ConfigError, EchoError

BOOTSTRAP_S = 15.0


@dataclass(frozen=True)
class Question:
    """What `doctor` was asked. `model`: a folder, a preset's name, or None for the run's base.

    `offline`: nothing is asked of the network.
    """

    folder: NodeFolder
    bootstrap: str | None = None
    run: str | None = None
    listen: tuple[str, ...] = ("/ip4/0.0.0.0/tcp/0",)
    config: Path | None = None
    model: str | None = None
    context: int | None = None
    offline: bool = False


@dataclass(frozen=True)
class Network:
    """The bootstrap file, or why there is none; and the run's entry in it."""

    bootstrap: Bootstrap | None = None
    entry: RunEntry | None = None
    error: EchoError | None = None


class Situation:
    """Facts, each gathered when first asked for."""

    def __init__(self, question: Question) -> None:
        self.question = question
        self._machine: Machine | None = None
        self._network: Network | None = None
        self._way: Way | None = None

    async def machine(self) -> Machine:
        if self._machine is None:
            self._machine = await trio.to_thread.run_sync(look)
        return self._machine

    def software(self) -> Software:
        return software.look()

    def book(self) -> Book | ConfigError:
        """The limits in force when no node runs, or what is wrong with their file."""
        try:
            return Book.read(self.question.config)
        except ConfigError as error:
            return error

    async def network(self) -> Network:
        if self._network is None:
            self._network = await self._read_bootstrap()
        return self._network

    async def _read_bootstrap(self) -> Network:
        source = self.question.bootstrap
        if self.question.offline and source is not None and "://" in source:
            return Network()
        found: Bootstrap | None = None
        try:
            found = await load_bootstrap(source, deadline_s=BOOTSTRAP_S)
            return Network(found, found.choose(self.question.run))
        except EchoError as error:
            return Network(found, error=error)

    async def way(self) -> Way | None:
        """The way to the hub; None offline, or without a bootstrap file."""
        entry = (await self.network()).entry
        if self.question.offline or entry is None:
            return None
        if self._way is None:
            self._way = await go(entry, self.question.folder, self.question.listen)
        return self._way


@dataclass(frozen=True)
class Check:
    """A check: its name, as errors name it, what it is about, and what it does."""

    name: str
    title: str
    run: Callable[[Situation], Awaitable[list[Finding]]]
