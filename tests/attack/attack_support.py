"""A hub, and nodes that may lie to it, for the tests of this folder. Nothing in it is a stand-in.

The hub is what `echo-hub serve` runs: ledger, learner process, scorer process, libp2p host. Nodes
are peers with keys of their own, connected to it over TCP and Noise; what they sign before they
spoil it comes from the node's own code and engine, so it would have been accepted as it was.

Hub and peers live in one trio loop in a thread, so that tests can share them: `Arena.run`.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import torch
import trio
from sqlalchemy import select

from echo_hub.commands.presets import preset
from echo_hub.config import RunConfig
from echo_hub.ledger.ledger import read_facts
from echo_hub.ledger.schema import groups, open_engine
from echo_hub.models import addmix3_path
from echo_hub.paths import RunFolder
from echo_hub.rollouts.pace import Paces
from echo_hub.service import Hub, open_hub
from echo_hub.tally import FrontSnapshot
from echo_hub.tokens import Tokenizer
from echo_node.engines.driver import Driver
from echo_node.engines.torch import TorchEngine
from echo_node.hub import Hub as HubClient
from echo_node.worker import jobs_of, submission
from echo_p2p import PROTOCOL
from echo_p2p.envelope import open_envelope, seal
from echo_p2p.identity import Identity
from echo_p2p.net.host import Peer, open_peer
from echo_p2p.net.rpc import ask
from echo_p2p.nursery import open_nursery
from echo_p2p.text import TurnText
from echo_p2p.wire import (
    CONTROL_PROTOCOL,
    Lease,
    LeaseGrant,
    LeaseRequest,
    Receipt,
    Submission,
    Submit,
    SubmitReply,
)

RUN_ID = "attacked"
GROUP = 2
LIMIT = 34
LEASE_S = 3600.0
ANSWER_S = 30.0

T = TypeVar("T")

torch.set_num_threads(1)


def small_run(**overrides: dict[str, Any]) -> RunConfig:
    """A run of the packaged policy in which everything is audited."""
    sections: dict[str, dict[str, Any]] = {
        "sampling": {"group_size": GROUP, "max_new_tokens": LIMIT},
        "lease": {"seconds": LEASE_S, "groups_per_request": 64, "newcomer_share": 1.0},
        "audit": {"floor": 1.0, "ban": False},
        "evaluation": {"prompts": 0},
        "network": {"listen": ["/ip4/127.0.0.1/tcp/0"], "directory": False},
        **overrides,
    }
    return preset("addmix3", run_id=RUN_ID, overrides=sections)


def seal_raw(
    identity: Identity, payload: bytes, *, kind: str = "Submission", protocol: int = PROTOCOL
) -> bytes:
    """Any bytes in a validly signed envelope: docs/protocol.md written out once more."""
    signature = identity.sign(f"echo-p2p/{protocol}/{kind}".encode() + b"\0" + payload)
    return msgspec.msgpack.encode([protocol, kind, identity.public_key, payload, signature])


class Clock:
    """The hub's clock: the real time, and what a test has put it forward by."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead_s


class Node:
    """A party with a key of its own and a connection to the hub."""

    def __init__(self, peer: Peer, hub_id: str) -> None:
        self.identity = peer.identity
        self.peer = peer
        self.hub_id = hub_id
        self.hub = HubClient(peer, hub_id, RUN_ID)
        """The node's own view of the hub, for what honest nodes do."""

    async def leases(self, count: int, version: int = 0) -> list[Lease]:
        """Leases as the node's own code takes them; all that were asked for."""
        request = LeaseRequest(run_id=RUN_ID, version=version, groups=count, wait_s=10.0)
        grant = await ask(
            self.peer, self.hub_id, CONTROL_PROTOCOL, request, LeaseGrant, deadline_s=ANSWER_S
        )
        assert len(grant.leases) == count
        return [open_envelope(data, Lease).message for data in grant.leases]

    async def send(self, envelope: bytes) -> Receipt:
        """Hand in any bytes in a `Submit`; the receipt, which must be signed by the hub."""
        request = Submit(envelope=envelope)
        reply = await ask(
            self.peer, self.hub_id, CONTROL_PROTOCOL, request, SubmitReply, deadline_s=ANSWER_S
        )
        opened = open_envelope(reply.receipt, Receipt)
        assert opened.peer_id == self.hub_id
        assert opened.message.run_id == RUN_ID
        assert opened.message.accepted == (opened.message.code == "accepted")
        return opened.message

    async def submit(self, submission: Submission) -> Receipt:
        """Sign a submission and hand it in; the receipt must be for it."""
        receipt = await self.send(seal(self.identity, submission))
        assert receipt.lease_id in (submission.lease_id, bytes(16))
        return receipt


class Arena:
    """A hub and three nodes of one run. Made by `open_arena`, used from outside its thread."""

    def __init__(
        self, hub: Hub, folder: RunFolder, clock: Clock, nodes: Sequence[Node], ahead: int
    ) -> None:
        self.hub = hub
        self.folder = folder
        self.clock = clock
        self.honest, self.attacker, self.accomplice = nodes
        self._token = trio.lowlevel.current_trio_token()
        text = TurnText.load(addmix3_path(), Tokenizer.load(addmix3_path()).eos)
        self._engine = Driver(TorchEngine(max_sequences=64, device="cpu"), lambda stop: text)
        self._engine.load(addmix3_path(), "float32")
        self._loaded: int | None = None
        self._busy = trio.Lock()
        self._ahead = ahead
        self._stock: defaultdict[tuple[Node, int], list[Submission]] = defaultdict(list)

    def run(self, act: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Call an async function in the arena's loop, for at most a minute."""

        async def bounded() -> T:
            with trio.fail_after(180):
                return await act(*args)

        return trio.from_thread.run(bounded, trio_token=self._token)

    async def answers(self, leases: Sequence[Lease], version: int = 0) -> list[Submission]:
        """Honest answers, by the node's engine."""
        jobs = [job for lease in leases for job in jobs_of(lease)]
        async with self._busy:
            if version != self._loaded:
                self._engine.activate(version, self.folder.adapter(version))
                self._loaded = version
            answers = iter(await trio.to_thread.run_sync(self._engine.generate, jobs))
        return [
            submission(RUN_ID, version, lease, [next(answers) for _ in range(lease.group_size)])
            for lease in leases
        ]

    async def ready(self, node: Node, version: int = 0) -> Submission:
        """The honest answer to a lease of a node; not handed in."""
        stock = self._stock[node, version]
        if not stock:  # many at once cost little more than one
            leases = await node.leases(self._ahead, version)
            stock += await self.answers(leases, version)
        return stock.pop()

    async def let_leases_expire(self) -> None:
        """Put the clock forward past the end of every lease, just after the hub looked at it."""
        await self.settled()
        await self.hub.front._changed.wait()  # nothing else is going on: its look each second
        self._stock.clear()
        self.clock.ahead_s += LEASE_S + 1

    async def outcome(self, node: Node, submission: Submission) -> str:
        """Hand in a submission: what became of it in the end (see `end_of`)."""
        return await self.end_of(await node.submit(submission))

    async def end_of(self, receipt: Receipt) -> str:
        """The receipt's code, or that with which an accepted group was dropped later on."""
        if not receipt.accepted:
            return receipt.code
        await self.settled()
        return self.reason_in_ledger(receipt.lease_id) or receipt.code

    def reason_in_ledger(self, lease_id: bytes) -> str | None:
        """Why the ledger says that a group was dropped, if it was."""
        engine = open_engine(self.folder.ledger, read_only=True)
        try:
            with engine.connect() as connection:
                query = select(groups.c.reason).where(groups.c.lease_id == lease_id)
                return connection.execute(query).scalar_one()
        finally:
            engine.dispose()

    async def until(self, holds: Callable[[FrontSnapshot], bool]) -> None:
        """Wait until the front has come so far."""
        while not holds(self.hub.front.snapshot()):
            await self.hub.front._changed.wait()

    async def settled(self) -> None:
        """Wait until every acknowledged group was scored and audited."""
        await self.until(
            lambda snapshot: (
                not snapshot.checking and not read_facts(self.folder.ledger)["groups_to_score"]
            )
        )

    async def counts(self) -> Counter[str]:
        """Rollouts by what became of them; ledger and front must say the same."""
        await self.settled()
        snapshot = self.hub.front.snapshot()
        facts: dict[str, Any] = read_facts(self.folder.ledger)
        counts = Counter(accepted=snapshot.rollouts_accepted, **snapshot.rollouts_rejected)
        assert counts == Counter(accepted=facts["rollouts_accepted"], **facts["rollouts_rejected"])
        return counts


@asynccontextmanager
async def _arena(config: RunConfig, root: Path, ahead: int) -> AsyncIterator[Arena]:
    folder, clock = RunFolder(root), Clock()
    if not folder.identity.exists():  # else the run goes on
        Identity.create().save(folder.identity)
    async with AsyncExitStack() as stack:
        hub = await stack.enter_async_context(open_hub(config, folder, clock=clock))
        # the clock jumps here, so a pace by it would say nothing
        hub.front._granter._paces = Paces(lease_s=1e12, most=128)
        nodes = []
        for _ in range(3):
            peer = await stack.enter_async_context(open_peer(Identity.create(), []))
            await peer.connect(hub.peer.addresses, deadline_s=10.0)
            nodes.append(Node(peer, hub.peer.peer_id))
        yield Arena(hub, folder, clock, nodes, ahead)


@contextmanager
def open_arena(config: RunConfig, root: Path, *, ahead: int = 1) -> Iterator[Arena]:
    """An arena, with its learner at work, for the length of the block.

    What ends it early is raised at the block's end.

    Args:
        ahead: leases to take and answer at a time.
    """
    opened: list[tuple[Arena, trio.Event]] = []
    failures: list[BaseException] = []
    is_open = threading.Event()

    async def live() -> None:
        async with _arena(config, root, ahead) as arena, open_nursery() as nursery:
            over = trio.Event()
            nursery.start_soon(arena.hub.run, trio.Event())
            opened.append((arena, over))
            is_open.set()
            await over.wait()
            nursery.cancel_scope.cancel()

    def run() -> None:
        try:
            trio.run(live)
        except BaseException as error:  # noqa: BLE001 - raised again in the test's thread
            failures.append(error)
        finally:
            is_open.set()

    thread = threading.Thread(target=run, name="arena")
    thread.start()
    try:
        is_open.wait()
        if opened:
            yield opened[0][0]
    finally:
        if opened and thread.is_alive():
            arena, over = opened[0]
            arena._token.run_sync_soon(over.set)
        thread.join()
        if failures:
            raise failures[0]
