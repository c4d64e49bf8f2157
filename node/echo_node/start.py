"""`echo-node join`, from the command to a node at work.

Promises: what a person may have got wrong (bootstrap file, key, address) is looked at before
anything large is loaded, so it is said at once. Then the engine's process is started, if the limits
let it, and imports what it needs while this one loads the network's libraries; these wait for
nothing of each other. The first Ctrl-C ends in order, the second at once.
"""

from __future__ import annotations

import importlib
import os
import signal
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio

from echo_node import update
from echo_node.chronicle import Chronicle
from echo_node.control.lock import Holder, running_here
from echo_node.engines.remote import RemoteEngine, open_engine
from echo_node.engines.sizing import UNPLANNED
from echo_node.events import Event, Note
from echo_node.governor import govern_engine
from echo_node.limits.book import Book
from echo_node.limits.data import DataCount
from echo_node.limits.rules import RUNS, decide
from echo_node.paths import NodeFolder, config_file
from echo_node.sensors.computer import Computer, Sensors
from echo_node.sensors.look import look
from echo_node.snapshot import Snapshot
from echo_node.steps import step
from echo_node.update import Updater
from echo_p2p.bootstrap import RunEntry
from echo_p2p.bootstrap_source import load_bootstrap
from echo_p2p.errors import ReleaseError
from echo_p2p.identity import Identity
from echo_p2p.net.addresses import check_free
from echo_p2p.nursery import open_nursery

if TYPE_CHECKING:
    from echo_node.node import Node

BOOTSTRAP_S = 30.0
IMPORT_S = 600.0
STILL_EVERY_S = 2.0
QUIT = 130


@dataclass(frozen=True)
class JoinOptions:
    """What a volunteer chose. `bootstrap` and `run` None: the packaged file, its only run.

    `max_sequences` None: as many answers at a time as the plan finds room for.

    `book` has the limits to begin with, `config` is where changes of them are saved. `until_eof` is
    for programs that start nodes: the node stops when its stdin is closed, so it does not outlive a
    starter that was killed.
    """

    folder: NodeFolder
    bootstrap: str | None = None
    run: str | None = None
    listen: tuple[str, ...] = ("/ip4/0.0.0.0/tcp/0",)
    max_sequences: int | None = None
    engine: str = "auto"
    book: Book = field(default_factory=Book)
    config: Path = field(default_factory=config_file)
    until_eof: bool = False
    updater: Updater | None = None
    """Ends the node, in order, once it has a release ready."""


@dataclass
class Started:
    """A node's start. `node` is there once it is one."""

    options: JoinOptions
    entry: RunEntry
    identity: Identity
    engine: RemoteEngine
    sensors: Sensors
    holder: Holder
    chronicle: Chronicle
    screen: Callable[[Snapshot], None] | None


@dataclass
class Reins:
    """What a signal acts on: the node, once there is one that runs."""

    node: Node | None = None


async def join(
    options: JoinOptions,
    report: Callable[[Event], None],
    *,
    open_engine: Callable[..., AbstractAsyncContextManager[RemoteEngine]] = open_engine,
    sensors: Sensors | None = None,
    screen: Callable[[Snapshot], None] | None = None,
) -> int:
    """Work for a run until it is complete or we are told to stop; the exit code.

    Args:
        screen: shown how the node stands, every now and then.
    """
    code, reins = QUIT, Reins()
    with running_here(options.folder) as holder:
        async with open_nursery() as nursery:
            # from the first moment on: a KeyboardInterrupt raised somewhere within a library may
            # end there
            await nursery.start(_obey_signals, reins, nursery.cancel_scope)
            chronicle = Chronicle(report)
            nursery.start_soon(_tell_waits, chronicle)
            code = await _join(
                options,
                chronicle,
                holder,
                open_engine,
                sensors or Computer(),
                screen,
                reins,
            )
            nursery.cancel_scope.cancel()
    return code


async def _tell_waits(chronicle: Chronicle) -> None:
    """A line for a step that takes long, every now and then."""
    while True:
        await trio.sleep(STILL_EVERY_S)
        still = chronicle.still()
        if still is not None:
            chronicle(still)


async def _obey_signals(
    reins: Reins,
    scope: trio.CancelScope,
    task_status: Any = trio.TASK_STATUS_IGNORED,  # trio-typing, from libp2p, has no such type
) -> None:
    """Ctrl-C is the node's, `Node.interrupted`; before and after it, it ends everything."""
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        async for _ in signals:
            if reins.node is None:
                scope.cancel()
            else:
                reins.node.interrupted()


async def _join(
    options: JoinOptions,
    chronicle: Chronicle,
    holder: Holder,
    open_engine: Callable[..., AbstractAsyncContextManager[RemoteEngine]],
    sensors: Sensors,
    screen: Callable[[Snapshot], None] | None,
    reins: Reins,
) -> int:
    limits = options.book.limits
    with step(chronicle, "reading the bootstrap file", BOOTSTRAP_S + 5):
        network = await load_bootstrap(options.bootstrap, deadline_s=BOOTSTRAP_S)
    entry = network.choose(options.run)
    identity = Identity.load_or_create(options.folder.identity)
    for address in options.listen:
        check_free(address)
    async with open_engine(
        threads=limits.threads(os.cpu_count() or 1),
        max_sequences=options.max_sequences or UNPLANNED,
        log_path=options.folder.engine_log,
        engine=options.engine,
    ) as engine:
        if await _may_begin(options, sensors):
            govern_engine(engine, limits)
            engine.prepare()
        started = Started(options, entry, identity, engine, sensors, holder, chronicle, screen)
        with step(chronicle, "loading the network's libraries", IMPORT_S):
            node = await trio.to_thread.run_sync(importlib.import_module, "echo_node.node")
        async with open_nursery() as nursery:
            if options.updater is not None:
                nursery.start_soon(_follow_releases, options.updater, reins, chronicle)
            code = int(await node.work(started, reins))
            nursery.cancel_scope.cancel()
        return code


async def _follow_releases(updater: Updater, reins: Reins, chronicle: Chronicle) -> None:
    """End the node in order once there is a newer release; whoever started it installs that."""
    while True:
        await trio.sleep(update.CHECK_EVERY_S)
        try:
            release = await trio.to_thread.run_sync(updater.look)
        except ReleaseError as error:
            chronicle(Note(message=f"No newer release was looked for: {error}"))
            continue
        if release is not None and reins.node is not None:
            chronicle(Note(message=f"Release {release.version} is signed and will be installed."))
            reins.node.leave()


async def _may_begin(options: JoinOptions, sensors: Sensors) -> bool:
    """Whether the limits let work begin now; the governor looks again, and then every while."""
    limits, now = options.book.limits, time.time()
    readings, _ = await look(sensors, limits)
    counted = DataCount.load(options.folder.data_count).counted_in(readings, now, limits.zone)
    return decide(limits, counted, now, holds=[], before=RUNS).runs
