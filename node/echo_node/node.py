"""A node from its first session to its last receipt; `start` is what comes before.

Promises: an answer that was signed is handed in, or the exit code says that it was not; the first
Ctrl-C ends in order, the second at once; nothing from the network is run as code. The node's own
process imports neither torch nor hivemind.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from echo_node.control.desk import Desk
from echo_node.control.server import listening
from echo_node.credit import CreditKeeper
from echo_node.deltas import Deltas
from echo_node.downloads import Downloads
from echo_node.engines.remote import RemoteEngine
from echo_node.events import Event, Note, Progress, Summary
from echo_node.gate import Gate
from echo_node.governor import Governed, Governor, rates_of
from echo_node.meter import Meter
from echo_node.notice import Notice
from echo_node.outbox import Outbox
from echo_node.paths import NodeFolder
from echo_node.people import vouched_for
from echo_node.planner import Planner
from echo_node.policies import Policies
from echo_node.session import Parts, Sessions
from echo_node.snapshot import Snapshot
from echo_node.standing import Standing
from echo_node.start import QUIT, Reins, Started
from echo_p2p.artifact.store import Store
from echo_p2p.bootstrap import RunEntry
from echo_p2p.errors import NetError
from echo_p2p.identity import Identity
from echo_p2p.net.host import Peer, open_peer
from echo_p2p.nursery import open_nursery
from echo_p2p.swarm.exchange import Exchange

TICK_S = 2.0
SCREEN_S = 0.5
_ANY_PLAN = Planner()


async def work(started: Started, reins: Reins) -> int:
    """Be the node that was started, to its end; the exit code. See `start.join`."""
    options, chronicle = started.options, started.chronicle
    limits = options.book.limits
    async with (
        _open_store(options.folder.store) as store,
        open_peer(started.identity, options.listen, limits=rates_of(limits)) as peer,
    ):
        node = Node(
            options.folder,
            started.entry,
            started.identity,
            store,
            peer,
            started.engine,
            chronicle,
            Planner(engine=options.engine, max_sequences=options.max_sequences, limits=limits),
        )
        reins.node = node
        governor = Governor(
            options.book,
            started.sensors,
            node.governed,
            config=options.config,
            data_count=options.folder.data_count,
        )
        standing = Standing(node.parts, node.sessions, governor, chronicle, options.folder)
        desk = Desk(governor, chronicle, snapshot=standing.snapshot, leave=node.leave)
        async with listening(Path(started.holder.socket)) as server, open_nursery() as nursery:
            nursery.start_soon(server.serve, desk.answer)
            nursery.start_soon(governor.run)
            await governor.ready.wait()
            if started.screen is not None:
                nursery.start_soon(_show, started.screen, standing)
            await node.run(until_eof=options.until_eof)
            reins.node = None
            nursery.cancel_scope.cancel()
        return node.finish()


async def _show(screen: Callable[[Snapshot], None], standing: Standing) -> None:
    while True:
        screen(standing.snapshot())
        await trio.sleep(SCREEN_S)


@asynccontextmanager
async def _open_store(root: Path) -> AsyncIterator[Store]:
    # the governor caps it before anything is fetched
    store = await trio.to_thread.run_sync(lambda: Store(root, cap_bytes=None))
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
        gate = Gate(notice)
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
            gate=gate,
            report=report,
            planner=planner,
        )
        self._sessions = Sessions(self._parts)
        self._meter = Meter(trio.current_time())
        self._quit = False
        self._scope: trio.CancelScope | None = None

    @property
    def parts(self) -> Parts:
        return self._parts

    @property
    def sessions(self) -> Sessions:
        return self._sessions

    @property
    def governed(self) -> Governed:
        """What a governor of this node acts on."""
        parts = self._parts
        return Governed(
            gate=parts.gate,
            peer=parts.peer,
            store=parts.store,
            engine=parts.engine,
            work=self._sessions,
            notice=parts.notice,
            report=parts.report,
        )

    def leave(self) -> None:
        """Somebody asked us to end: in order."""
        self._parts.report(Note(message="Leaving: handing in what is running."))
        self._sessions.stop()

    async def run(self, *, until_eof: bool = False) -> None:
        """Work until there is nothing more to do."""
        async with open_nursery() as nursery:
            if until_eof:
                nursery.start_soon(self._stop_at_eof)
            self._scope = nursery.cancel_scope
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

    def interrupted(self) -> None:
        """Ctrl-C: the first stops, the second quits at once."""
        if not self._sessions.stopping:
            self._parts.report(
                Note(message="Handing in what is running. Press Ctrl-C again to quit at once.")
            )
            self._sessions.stop()
        elif self._scope is not None:
            self._quit = True
            self._parts.engine.kill()
            self._scope.cancel()

    async def _tell_progress(self) -> None:
        while True:
            await trio.sleep(TICK_S)
            worker = self._sessions.worker
            if worker is None or not self._sessions.held:
                continue
            done = worker.done
            running, tokens = self._parts.engine.under_way
            sampled = self._parts.engine.sampled
            rates = self._meter.rates(trio.current_time(), done.rollouts, sampled)
            self._parts.report(
                Progress(
                    version=self._parts.policies.active,
                    rollouts_per_s=round(rates[0], 2),
                    tokens_per_s=round(rates[1], 1),
                    running=running,
                    running_tokens=tokens,
                    **self._tally(),
                )
            )

    def _tally(self) -> dict[str, Any]:
        done, outbox = self._sessions.done, self._parts.outbox
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
