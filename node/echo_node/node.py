"""`echo-node join`: a node from its bootstrap file to its last receipt.

Promises: an answer that was signed is handed in, or the exit code says that it was not; the first
Ctrl-C ends in order, the second at once; nothing from the network is run as code. The node's own
process imports neither torch nor hivemind.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

from echo_node.credit import CreditKeeper
from echo_node.deltas import Deltas
from echo_node.downloads import Downloads
from echo_node.engines.remote import RemoteEngine, open_engine
from echo_node.events import Event, Note, Progress, Summary
from echo_node.meter import Meter
from echo_node.notice import Notice
from echo_node.outbox import Outbox
from echo_node.paths import NodeFolder
from echo_node.people import vouched_for
from echo_node.planner import UNPLANNED, Planner
from echo_node.policies import Policies
from echo_node.session import Parts, Sessions, step
from echo_node.worker import Work
from echo_p2p.artifact.store import Store
from echo_p2p.bootstrap import RunEntry
from echo_p2p.bootstrap_source import load_bootstrap
from echo_p2p.errors import NetError
from echo_p2p.identity import Identity
from echo_p2p.net.host import Peer, open_peer
from echo_p2p.nursery import open_nursery
from echo_p2p.rates import Limits
from echo_p2p.swarm.exchange import Exchange

BOOTSTRAP_S = 30.0
STORE_BYTES = 50 << 30
TICK_S = 2.0
QUIT = 130
_ANY_PLAN = Planner()


@dataclass(frozen=True)
class JoinOptions:
    """What a volunteer chose. `bootstrap` and `run` None: the packaged file, its only run.

    `max_sequences` None: as many answers at a time as the plan finds room for.

    `until_eof` is for programs that start nodes: the node stops when its stdin is closed, so it
    does not outlive a starter that was killed.
    """

    folder: NodeFolder
    bootstrap: str | None = None
    run: str | None = None
    listen: tuple[str, ...] = ("/ip4/0.0.0.0/tcp/0",)
    threads: int = 0
    max_sequences: int | None = None
    engine: str = "auto"
    limits: Limits = field(default_factory=Limits)
    until_eof: bool = False


async def join(
    options: JoinOptions,
    report: Callable[[Event], None],
    *,
    open_engine: Callable[..., AbstractAsyncContextManager[RemoteEngine]] = open_engine,
) -> int:
    """Work for a run until it is complete or we are told to stop; the exit code."""
    with step(report, "reading the bootstrap file", BOOTSTRAP_S + 5):
        network = await load_bootstrap(options.bootstrap, deadline_s=BOOTSTRAP_S)
    entry = network.choose(options.run)
    identity = Identity.load_or_create(options.folder.identity)
    async with (
        _open_store(options.folder.store) as store,
        open_peer(identity, options.listen, limits=options.limits) as peer,
        open_engine(
            threads=options.threads,
            max_sequences=options.max_sequences or UNPLANNED,
            log_path=options.folder.engine_log,
            engine=options.engine,
        ) as engine,
    ):
        engine.prepare()
        planner = Planner(engine=options.engine, max_sequences=options.max_sequences)
        node = Node(options.folder, entry, identity, store, peer, engine, report, planner)
        await node.run(until_eof=options.until_eof)
        return node.finish()


@asynccontextmanager
async def _open_store(root: Path) -> AsyncIterator[Store]:
    store = await trio.to_thread.run_sync(lambda: Store(root, cap_bytes=STORE_BYTES))
    try:
        yield store
    finally:
        store.close()


class Node:
    """One node in one run."""

    def __init__(
        self,
        folder: NodeFolder,
        entry: RunEntry,
        identity: Identity,
        store: Store,
        peer: Peer,
        engine: RemoteEngine,
        report: Callable[[Event], None],
        planner: Planner = _ANY_PLAN,
    ) -> None:
        notice = Notice()
        exchange = Exchange(peer, store)
        downloads = Downloads(store, exchange, notice, report)
        outbox = Outbox(identity, notice)
        self._parts = Parts(
            entry=entry,
            node=identity.public_key,
            peer=peer,
            store=store,
            exchange=exchange,
            downloads=downloads,
            engine=engine,
            policies=Policies(store, exchange, Deltas(store, exchange, downloads, report), notice),
            outbox=outbox,
            credit=CreditKeeper(
                folder,
                node=identity.public_key,
                vouched=vouched_for(folder, identity.peer_id),
                outbox=outbox,
                notice=notice,
                report=report,
            ),
            notice=notice,
            report=report,
            planner=planner,
        )
        self._sessions = Sessions(self._parts)
        self._meter = Meter(trio.current_time())
        self._quit = False

    async def run(self, *, until_eof: bool = False) -> None:
        """Work until there is nothing more to do."""
        async with open_nursery() as nursery:
            if until_eof:
                nursery.start_soon(self._stop_at_eof)
            nursery.start_soon(self._obey_signals, nursery.cancel_scope)
            nursery.start_soon(self._tell_progress)
            await self._sessions.run()
            nursery.cancel_scope.cancel()
        self._parts.policies.close()

    def finish(self) -> int:
        """Say what was done; the exit code. NetError if answers could not be handed in."""
        worker, outbox = self._sessions.worker, self._parts.outbox
        complete = worker is not None and worker.complete
        reason = "quit" if self._quit else "complete" if complete else "stopped"
        wall_s = round(self._meter.elapsed(trio.current_time()), 1)
        totals = {**self._parts.peer.limits.as_text(), **self._tally()}
        self._parts.report(Summary(reason=reason, wall_s=wall_s, **totals))
        if self._quit:
            return QUIT
        if outbox.unsent and not complete:
            raise NetError(f"{outbox.unsent} groups could not be handed in: the hub is away.")
        return 0

    async def _stop_at_eof(self) -> None:
        def wait() -> None:
            sys.stdin.read()

        # trio-typing, which libp2p brings, shadows trio's own types with older ones
        await trio.to_thread.run_sync(wait, abandon_on_cancel=True)  # type: ignore[call-arg]
        self._sessions.stop()

    async def _obey_signals(self, scope: trio.CancelScope) -> None:
        """The first Ctrl-C stops, the second quits at once."""
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async for _ in signals:
                if self._sessions.stopping:
                    self._quit = True
                    self._parts.engine.kill()
                    scope.cancel()
                    return
                self._parts.report(
                    Note(message="Handing in what is running. Press Ctrl-C again to quit at once.")
                )
                self._sessions.stop()

    async def _tell_progress(self) -> None:
        while True:
            await trio.sleep(TICK_S)
            worker = self._sessions.worker
            if worker is None or not self._sessions.held:
                continue
            done = worker.done
            rates = self._meter.rates(trio.current_time(), done.rollouts, done.tokens)
            self._parts.report(
                Progress(
                    version=self._parts.policies.active,
                    rollouts_per_s=round(rates[0], 2),
                    tokens_per_s=round(rates[1], 1),
                    **self._tally(),
                )
            )

    def _tally(self) -> dict[str, Any]:
        worker, outbox = self._sessions.worker, self._parts.outbox
        done = Work() if worker is None else worker.done
        stats = self._parts.exchange.stats
        return {
            "groups": done.groups,
            "accepted": outbox.accepted,
            "rejected": dict(outbox.rejected),
            "unsent": outbox.unsent,
            "rollouts": done.rollouts,
            "tokens": done.tokens,
            "bytes_from_hub": stats.bytes_from_hub,
            "bytes_from_peers": stats.bytes_from_peers,
            "bytes_sent": stats.bytes_sent.total(),
            "bytes_saved": self._parts.policies.deltas.saved_bytes,
        }
