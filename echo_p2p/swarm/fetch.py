"""One artifact on its way here: the planner's orders, carried out.

Promises: a chunk counts only when its digest matched and it is on disk; no peer is asked anything
without a deadline; what is in memory is bounded by the planner's slots; a peer that sends a bad
chunk is reported to the hub and not believed again. Decisions are the planner's, all of them.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import trio

from echo_p2p.artifact import bitmap
from echo_p2p.artifact.store import Partial
from echo_p2p.errors import ChunkError, NetError, StoreError, WireError
from echo_p2p.net.host import Peer
from echo_p2p.net.rpc import ask
from echo_p2p.swarm.planner import Limits, Planner
from echo_p2p.swarm.sources import Order
from echo_p2p.wire import (
    CONTROL_PROTOCOL,
    KIB,
    MAX_BACKLOG_S,
    SWARM_PROTOCOL,
    BadChunkReport,
    ChunkReply,
    ChunkRequest,
    Done,
    Elsewhere,
    HaveReply,
    HaveRequest,
    PeersReply,
    PeersRequest,
)

POLL_S = 20.0
ANSWER_S = 10.0
CONNECT_S = 5.0
REPORT_S = 5.0
SLOWEST_BYTES_S = 20e3  # a request may take as long as this rate needs for its chunk
# News of a chunk goes to all followers: with 16 and 32 here, 32 nodes took twice the CPU and time.
MAX_CALLED = 5
MAX_FOLLOWED = 6
MAX_MEETINGS = 5
RECENT_BYTES = 16 << 20
FIRST_PAUSE_S = 2.0
LONGEST_PAUSE_S = 30.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Progress:
    """How far a fetch has come, in bytes.

    `from_peers_bytes` came from other nodes than the hub, `resumed_bytes` were on disk before; a
    chunk that came twice counts twice in what came, and once in what is done.
    """

    done_bytes: int
    total_bytes: int
    from_hub_bytes: int
    from_peers_bytes: int
    resumed_bytes: int


@dataclass
class Stats:
    """Bytes of chunks that this program received and sent since it started."""

    bytes_from_hub: int = 0
    bytes_from_peers: int = 0
    bytes_sent: Counter[str] = field(default_factory=Counter)
    """By kind of artifact."""
    bytes_sent_of: Counter[bytes] = field(default_factory=Counter)
    """By the id of each artifact that is offered now."""


class Fetch:
    """Makes a partial artifact whole.

    Args:
        hub: the hub's peer id; None takes chunks from connected peers alone.
        distrusted: peers that once sent a bad chunk; added to here.
        arrived: called after each chunk, when it can be served.
        backlog_s: how long a chunk would wait here to be passed on; None: it would not be.
    """

    def __init__(
        self,
        peer: Peer,
        partial: Partial,
        *,
        hub: str | None,
        stats: Stats,
        distrusted: set[str],
        arrived: Callable[[], None],
        progress: Callable[[Progress], None] | None,
        backlog_s: Callable[[], float | None],
    ) -> None:
        self.artifact = partial.artifact
        self._layout = partial.artifact.layout
        self._peer = peer
        self._partial = partial
        self._hub = hub
        self._stats = stats
        self._distrusted = distrusted
        self._arrived = arrived
        self._progress = progress
        self._backlog_s = backlog_s
        self._planner = Planner(
            self._layout.count,
            partial.have,
            hub=hub,
            limits=Limits.for_chunks(self._layout.chunk_bytes, peer.limits.download),
            now=trio.current_time(),
            rng=random.Random(),
        )
        self._done_bytes = sum(map(self._layout.size, bitmap.indices(partial.have)))
        self._resumed_bytes = self._done_bytes
        self._from_hub_bytes = self._from_peers_bytes = 0
        self._followed: set[str] = set()
        self._meetings: Counter[str] = Counter()
        self._in_progress: dict[int, trio.CancelScope] = {}
        self._woken = trio.Event()
        self._search_again = trio.Event()
        self._failure: StoreError | None = None
        self._nursery: trio.Nursery | None = None
        self._recent: dict[int, memoryview] = {}

    async def run(self, interested: Collection[str]) -> None:
        """Fetch until nothing is lacking; `interested` are peers that asked us for it before."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                for peer_id in interested:
                    self.meet(peer_id, interested=True)
                nursery.start_soon(self._search)
                await self._carry_out_orders(nursery)
            finally:
                self._nursery = None
            nursery.cancel_scope.cancel()
        if self._failure is not None:
            raise self._failure

    async def _carry_out_orders(self, nursery: trio.Nursery) -> None:
        while self._planner.lacks and self._failure is None:
            now = trio.current_time()
            orders = self._planner.plan(now)
            self._cancel(self._planner.withdrawn())
            for order in orders:
                self._in_progress[order.number] = trio.CancelScope()
                nursery.start_soon(self._carry_out, order)
            wake_at = self._planner.wake_at(now)
            with trio.move_on_at(float("inf") if wake_at is None else wake_at):
                await self._woken.wait()
            self._woken = trio.Event()

    def meet(self, peer_id: str, *, interested: bool = False) -> None:
        """Follow what a connected peer has. `interested`: it is fetching this artifact too."""
        if self._nursery is None or peer_id == self._hub or peer_id in self._distrusted:
            return
        if interested:
            self._planner.peer_has(peer_id, 0, trio.current_time())
        if peer_id in self._followed or not self._has_room():
            return
        self._meetings[peer_id] += 1
        if self._meetings[peer_id] <= MAX_MEETINGS:
            self._followed.add(peer_id)
            self._nursery.start_soon(self._follow, peer_id)

    def _has_room(self) -> bool:
        """Whether to follow one more. Those that are not counted on take no place."""
        now = trio.current_time()
        return sum(self._planner.counts_on(peer, now) for peer in self._followed) < MAX_FOLLOWED

    def _make_room(self, silent: str) -> None:
        """A peer had no news: its place goes to another, if there is one."""
        others = self._peer.connected() - self._followed
        self._followed.discard(silent)
        for peer_id in [*random.sample(sorted(others), len(others)), silent]:
            self.meet(peer_id)
        self._search_again.set()

    def recent(self, index: int) -> memoryview | None:
        """A chunk that came lately, verified: others ask for it at once, so it is kept a while."""
        return self._recent.get(index)

    def _wake(self) -> None:
        self._woken.set()

    # --- finding peers and what they have -------------------------------------------------------

    async def _search(self) -> None:
        """Now and again: who is connected, and whom does the hub know that has or wants this?"""
        pause = FIRST_PAUSE_S
        while True:
            if self._hub is not None:
                await self._ask_hub(self._hub)
            self._meet_connected()
            with trio.move_on_after(pause) as waiting:
                await self._search_again.wait()
            self._search_again = trio.Event()
            if waiting.cancelled_caught:
                pause = min(LONGEST_PAUSE_S, 2 * pause)

    async def _ask_hub(self, hub: str) -> None:
        request = PeersRequest(artifact=self.artifact.id)
        try:
            reply = await ask(
                self._peer, hub, SWARM_PROTOCOL, request, PeersReply, deadline_s=ANSWER_S
            )
        except NetError as error:
            _log.info("the hub names no peers for %s: %s", self.artifact, error)
        else:
            await self._call(reply)

    def _meet_connected(self) -> None:
        others = self._peer.connected() - self._followed
        for peer_id in random.sample(sorted(others), len(others)):
            self.meet(peer_id)

    async def _call(self, reply: PeersReply) -> None:
        known = self._followed | self._distrusted | {self._peer.peer_id, self._hub}
        others = [peer for peer in reply.peers if peer and peer[0].rpartition("/")[2] not in known]
        room = max(0, MAX_CALLED - len(self._followed))
        async with trio.open_nursery() as nursery:
            for addresses in random.sample(others, min(room, len(others))):
                nursery.start_soon(self._connect, addresses)

    async def _connect(self, addresses: tuple[str, ...]) -> None:
        try:
            peer_id = await self._peer.connect(addresses, deadline_s=CONNECT_S)
        except NetError as error:
            _log.debug("%s", error)
        else:
            self.meet(peer_id)

    async def _follow(self, peer_id: str) -> None:
        """Keep asking a peer what it has until it has everything or fails."""
        count = self._layout.count
        known, pause = 0, FIRST_PAUSE_S
        try:
            while known != bitmap.full(count):
                began = trio.current_time()
                request = HaveRequest(
                    artifact=self.artifact.id, known=bitmap.to_bytes(known, count), wait_s=POLL_S
                )
                reply = await ask(
                    self._peer,
                    peer_id,
                    SWARM_PROTOCOL,
                    request,
                    HaveReply,
                    deadline_s=POLL_S + ANSWER_S,
                )
                have = bitmap.from_bytes(reply.have, count)
                if have & ~known:
                    known |= have
                    pause = FIRST_PAUSE_S
                    self._planner.peer_has(peer_id, known, trio.current_time())
                    self._wake()
                elif not self._has_room():
                    self._make_room(peer_id)
                    return
                elif trio.current_time() - began < POLL_S / 2:
                    # it answers at once and says nothing: it shall not keep us busy
                    await trio.sleep(pause)
                    pause = min(LONGEST_PAUSE_S, 2 * pause)
        except (NetError, WireError) as error:
            _log.debug("%s is followed no longer: %s", peer_id, error)
            self._planner.peer_gone(peer_id)
            self._followed.discard(peer_id)
            self._wake()

    # --- chunks ---------------------------------------------------------------------------------

    async def _carry_out(self, order: Order) -> None:
        with self._in_progress[order.number]:
            try:
                await self._ask_for(order)
            except (NetError, ChunkError) as error:
                _log.debug("%s", error)
                self._planner.failed(order, trio.current_time())
            except StoreError as error:
                self._failure = error
            finally:
                del self._in_progress[order.number]
                self._wake()

    def _cancel(self, orders: list[Order]) -> None:
        for order in orders:
            if scope := self._in_progress.get(order.number):  # gone when all is being cancelled
                scope.cancel()

    async def _ask_for(self, order: Order) -> None:
        picks = order.index is None
        backlog_s = self._backlog_s() if picks else None
        request = ChunkRequest(
            artifact=self.artifact.id,
            index=order.index,
            lacks=bitmap.to_bytes(order.lacks, self._layout.count) if picks else b"",
            insist=order.insist,
            backlog_s=None if backlog_s is None else min(backlog_s, MAX_BACKLOG_S),
        )
        reply = await ask(
            self._peer,
            order.source,
            SWARM_PROTOCOL,
            request,
            ChunkReply | Elsewhere,
            deadline_s=ANSWER_S + self._layout.chunk_bytes / SLOWEST_BYTES_S,
            max_reply=self._layout.chunk_bytes + 4 * KIB,
        )
        if isinstance(reply, ChunkReply):
            await self._take(order, reply.index, reply.data)
        elif order.source == self._hub:
            self._planner.elsewhere(order, trio.current_time())
            if not self._followed:  # so there are others, and we know none
                self._search_again.set()
        else:
            raise NetError(f"{order.source} sent chunk {order.index} elsewhere; only a hub may.")

    async def _take(self, order: Order, index: int, data: memoryview) -> None:
        if not (order.lacks >> index & 1 if order.index is None else index == order.index):
            raise NetError(f"{order.source} sent chunk {index}, which it was not asked for.")
        try:
            await trio.to_thread.run_sync(self._partial.write, index, data)
        except ChunkError:
            await self._report(order.source, index)
            raise
        new = not self._planner.have >> index & 1
        self._recent[index] = data
        while len(self._recent) * self._layout.chunk_bytes > RECENT_BYTES:
            del self._recent[next(iter(self._recent))]
        self._cancel(self._planner.arrived(order, index, trio.current_time()))
        self._count(order.source, len(data), new=new)

    def _count(self, source: str, size: int, *, new: bool) -> None:
        if source == self._hub:
            self._stats.bytes_from_hub += size
            self._from_hub_bytes += size
        else:
            self._stats.bytes_from_peers += size
            self._from_peers_bytes += size
        self._done_bytes += size if new else 0
        self._arrived()
        if self._progress is not None:
            self._progress(
                Progress(
                    self._done_bytes,
                    self._layout.total_bytes,
                    self._from_hub_bytes,
                    self._from_peers_bytes,
                    self._resumed_bytes,
                )
            )

    async def _report(self, source: str, index: int) -> None:
        """A bad chunk: believe its sender no more, and tell the hub even if we are done by then."""
        if source == self._hub:
            _log.warning("the hub sent a bad chunk %d of %s.", index, self.artifact)
            return
        _log.warning("%s sent a bad chunk %d of %s.", source, index, self.artifact)
        self._distrusted.add(source)
        self._planner.distrust(source)
        self._wake()
        if self._hub is None:
            return
        report = BadChunkReport(artifact=self.artifact.id, peer=source, index=index)
        with trio.CancelScope(shield=True):
            try:
                await ask(
                    self._peer, self._hub, CONTROL_PROTOCOL, report, Done, deadline_s=REPORT_S
                )
            except NetError as error:
                _log.info("the hub could not be told: %s", error)
