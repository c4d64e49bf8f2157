"""A hub for the node's tests: real identity, network, store and signatures, and leases to order."""

from __future__ import annotations

import itertools
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import trio
from engine_models import CONTEXT, VOCAB

from echo_node.engines.base import Completion, Dtype, EngineInfo, Job, Resources
from echo_node.engines.driver import Driver
from echo_node.engines.torch import TorchEngine
from echo_node.notice import Notice
from echo_p2p.artifact.manifest import DELTA_FILE, Artifact, build_manifest
from echo_p2p.artifact.rebuild import make_delta
from echo_p2p.artifact.store import Store
from echo_p2p.envelope import Opened, open_envelope, seal
from echo_p2p.errors import EngineError, PeerRefusedError
from echo_p2p.identity import Identity
from echo_p2p.net.host import Peer, Remote, Stream, open_peer
from echo_p2p.net.rpc import answer
from echo_p2p.swarm.exchange import Exchange, HubSide
from echo_p2p.wire import (
    CONTROL_PROTOCOL,
    WATCH_PROTOCOL,
    Announcement,
    Credit,
    CreditReply,
    CreditRequest,
    DeltaOf,
    Done,
    Farewell,
    HandedTurn,
    Heartbeat,
    Hello,
    HubRequest,
    Introduce,
    Latest,
    LatestRequest,
    Lease,
    LeaseGrant,
    LeaseRequest,
    LeaseReturn,
    Message,
    Obtained,
    Receipt,
    RunDescription,
    Sampling,
    StandbyReply,
    StandbyRequest,
    Submission,
    Submit,
    SubmitReply,
    TurnReply,
    TurnRequest,
    Voucher,
    Watch,
    decode,
    encode,
    pack_tokens,
)

RUN_ID = "test"


class SmallHub:
    """State that outlives its time on the network (see `on_the_network`)."""

    def __init__(self, store: Store, base: Path) -> None:
        self.identity = Identity.create()
        self.signer = self.identity
        """Who signs the run description."""
        self.description: dict[str, object] = {}
        """What it says otherwise than is right."""
        self.verdict: Callable[[Submission], str] = lambda _: ""
        """Reason code of a submission's receipt; empty accepts it."""
        self.complete = False
        self.heartbeats = True
        self.leases: list[dict[str, object]] = []
        """To be granted, each to whoever asks next; fields other than the usual ones."""
        self.granted: dict[bytes, Lease] = {}
        self.submissions: dict[bytes, Submission] = {}
        self.verdicts: list[Receipt] = []
        """Told with the next grant."""
        self.banned: str | None = None
        """Why the node is refused at the door, if it is."""
        self.reply: Callable[[HandedTurn], list[int] | None] = lambda _: None
        """What follows a turn of a lease in which the hub itself replies."""
        self.ready_to_reply = True
        self.turns: list[TurnRequest] = []
        self.standby: StandbyReply | None = None
        """Why a node gets no work; None is a hub too old to be asked."""
        self.tries = 0
        self.returned: list[bytes] = []
        self.farewells = 0
        self.hellos: list[Hello] = []
        self.obtained: list[Obtained] = []
        self.vouchers: dict[bytes, tuple[bytes, str]] = {}
        """By machine: the person's key, and their name."""
        self.hears_of_downloads = True
        self.clock: Callable[[], float] = time.time
        self.changed = Notice()
        self._store = store
        self._numbers = itertools.count(1)
        self._base = self._add("base", 0, base)
        self._adapter: Artifact | None = None
        self._delta: Artifact | None = None
        self._exchange: Exchange | None = None

    def _add(self, kind: str, version: int, folder: Path, delta: DeltaOf | None = None) -> Artifact:
        manifest = build_manifest(
            folder, run_id=RUN_ID, kind=kind, version=version, chunk_bytes=65536, created_at=1.0,
            delta=delta,
        )  # type: ignore[arg-type]  # fmt: skip
        artifact = Artifact.sign(self.identity, manifest)
        self._store.add(artifact, folder)
        return artifact

    def publish(self, version: int, folder: Path, *, delta: Path | None = None) -> None:
        """A version; with `delta`, a folder to make one in (or, if it has one, to take it from)."""
        parent, self._adapter, self._delta = (
            self._adapter,
            self._add("adapter", version, folder),
            None,
        )
        if delta is not None:
            assert parent is not None
            if not delta.exists():
                delta.mkdir()
                make_delta(self._store, parent, self._adapter, delta / DELTA_FILE)
            joins = DeltaOf(parent=parent.id, target=self._adapter.id)
            self._delta = self._add("delta", version, delta, joins)
        if self._exchange is not None:
            for artifact in filter(None, (self._adapter, self._delta)):
                self._exchange.offer(artifact.id)
        self.changed.tell()

    def order(self, count: int, **fields: object) -> None:
        self.leases += [fields] * count
        self.changed.tell()

    def answered(self) -> int:
        return len(self.submissions)

    @asynccontextmanager
    async def on_the_network(self, listen: str = "/ip4/127.0.0.1/tcp/0") -> AsyncIterator[Peer]:
        async with open_peer(self.identity, [listen]) as peer:
            self._exchange = Exchange(peer, self._store, hub=HubSide())
            for artifact in filter(None, (self._base, self._adapter, self._delta)):
                self._exchange.offer(artifact.id)
            answer(peer, CONTROL_PROTOCOL, HubRequest, self._answer, deadline_s=30.0)
            peer.serve_stream(WATCH_PROTOCOL, self._watch)
            yield peer

    async def _answer(self, remote: Remote, request: Message) -> Message:
        match request:
            case Hello() | LeaseRequest() | Submit() if self.banned:
                raise PeerRefusedError(self.banned, code="banned")
            case Hello():
                self.hellos.append(request)
                return self._latest()
            case LatestRequest():
                return self._latest()
            case LeaseRequest():
                return await self._grant(remote, request)
            case LeaseReturn():
                self.returned += request.lease_ids
                self.changed.tell()
                return Done()
            case Farewell():
                self.farewells += 1
                self.changed.tell()
                return Done()
            case Obtained() if self.hears_of_downloads:
                self.obtained.append(request)
                self.changed.tell()
                return Done()
            case Introduce():
                voucher = open_envelope(request.voucher, Voucher)
                name = voucher.message.name
                self.vouchers[voucher.message.machine] = (voucher.key, name)
                return Done()
            case CreditRequest():
                return self._state(remote)
            case StandbyRequest() if self.standby is not None:
                return self.standby
            case TurnRequest():
                self.turns.append(request)
                self.changed.tell()
                return self._say(request)
            case Submit():
                return self._receive(open_envelope(request.envelope, Submission), remote)
        raise PeerRefusedError("no such request", code="bad_message")

    def _state(self, remote: Remote) -> CreditReply:
        groups = len(self.submissions)
        credit = Credit(
            run_id=RUN_ID,
            node=remote.public_key,
            person=None,
            name=self.vouchers.get(remote.public_key, (b"", ""))[1],
            groups=groups,
            rollouts=4 * groups,
            tokens=40 * groups,
            audited_tokens=0,
            since=0.0,
            at=time.time(),
        )
        return CreditReply(credit=seal(self.identity, credit))

    def _say(self, request: TurnRequest) -> TurnReply:
        if not self.ready_to_reply:
            return TurnReply(ready=False, replies=())
        said = [self.reply(turn) for turn in request.turns]
        packed = [None if one is None else pack_tokens(one) for one in said]
        return TurnReply(ready=True, replies=tuple(packed))

    def _latest(self) -> Latest:
        run = {
            "run_id": RUN_ID,
            "task": "a test",
            "base": self._base.id,
            "group_size": 4,
            "staleness": 2,
            "vocab_size": VOCAB,
            "context": 2 * CONTEXT,
            "dtype": "float32",
            "created_at": time.time(),
            "environments": (),
        }
        return Latest(
            run=seal(self.signer, RunDescription(**{**run, **self.description})),
            base=self._base.envelope,
            adapter=None if self._adapter is None else self._adapter.envelope,
            hub_time=self.clock(),
            delta=None if self._delta is None else self._delta.envelope,
        )

    async def _grant(self, remote: Remote, request: LeaseRequest) -> LeaseGrant:
        with trio.move_on_after(request.wait_s):
            await self.changed.until(lambda: self.leases or self.complete)
        chosen, self.leases = self.leases[: request.groups], self.leases[request.groups :]
        leases = [self._lease(remote, request.version, fields) for fields in chosen]
        self.granted |= {lease.lease_id: lease for lease in leases}
        return LeaseGrant(
            leases=tuple(seal(self.identity, lease) for lease in leases),
            state="complete" if self.complete else "open",
            verdicts=tuple(seal(self.identity, one) for one in self._take_verdicts()),
        )

    def _take_verdicts(self) -> list[Receipt]:
        taken, self.verdicts = self.verdicts, []
        return taken

    def _lease(self, remote: Remote, version: int, fields: dict[str, object]) -> Lease:
        number = next(self._numbers)
        usual = {
            "run_id": RUN_ID,
            "lease_id": number.to_bytes(16, "big"),
            "node": remote.public_key,
            "prompt": pack_tokens([3 + number % 40] * (1 + number % 5)),
            "group_size": 4,
            "seed": number,
            "sampling": Sampling(temperature=1.0, max_new_tokens=6, stop=(2, 7)),
            "min_version": 0,
            "max_version": None,
            "issued_at": self.clock(),
            "expires_at": self.clock() + 60,
            "turns": None,
        }
        return Lease(**{**usual, **fields})

    def _receive(self, opened: Opened[Submission], remote: Remote) -> SubmitReply:
        assert opened.key == remote.public_key
        submission = opened.message
        self.tries += 1
        code = self.verdict(submission)
        if submission.lease_id in self.submissions:
            code = "duplicate"
        elif not code:
            self.submissions[submission.lease_id] = submission
        receipt = Receipt(
            run_id=RUN_ID,
            lease_id=submission.lease_id,
            accepted=not code,
            code=code or "accepted",
            sentence="",
            at=time.time(),
        )
        self.changed.tell()
        return SubmitReply(receipt=seal(self.identity, receipt))

    async def _watch(self, remote: Remote, stream: Stream) -> None:
        decode(await stream.receive(1024, deadline_s=5), Watch)
        sent: list[Artifact] = []
        while True:
            with trio.move_on_after(0.2):
                await self.changed.until(lambda: self._adapter not in [None, *sent[-1:]])
            if self._adapter is not None and self._adapter not in sent[-1:]:
                sent.append(self._adapter)
                delta = None if self._delta is None else self._delta.envelope
                await stream.send(encode(Announcement(adapter=sent[-1].envelope, delta=delta)))
            elif self.heartbeats:
                await stream.send(encode(Heartbeat(hub_time=self.clock())))


class ThreadEngine:
    """A real torch engine in a thread of this process: starts at once, and cannot die.

    Calls are answered one after the other.
    """

    capacity = 8
    under_way = (0, 0)

    @property
    def sampled(self) -> int:
        return self._engine.sampled

    def __init__(self) -> None:
        self._engine = TorchEngine(max_sequences=self.capacity, device="cpu")
        self._driver = Driver(self._engine)
        self._one = trio.Lock()
        self.failures = 0
        self.batches: list[list[Job]] = []
        self.released: list[int] = []
        self.planned: tuple[str | None, int] | None = None
        self.hold = trio.CapacityLimiter(1)
        """Borrow it to keep `generate` waiting."""

    def use(self, *, max_sequences: int, engine: str | None = None, resources: Resources) -> None:
        self.planned = (engine, max_sequences)

    async def load(self, base: Path, dtype: Dtype) -> EngineInfo:
        async with self._one:
            return await trio.to_thread.run_sync(self._driver.load, base, dtype)

    async def activate(self, version: int, adapter: Path) -> None:
        async with self._one:
            await trio.to_thread.run_sync(self._driver.activate, version, adapter)

    def release(self, version: int) -> None:
        self.released.append(version)

    async def generate(
        self,
        jobs: Sequence[Job],
        *,
        version: int | None = None,
        finished: Callable[[], None] | None = None,
    ) -> list[Completion]:
        self.batches.append(list(jobs))
        async with self.hold, self._one:
            try:
                answers = await trio.to_thread.run_sync(self._driver.generate, jobs, version)
            except EngineError:
                self.failures += 1
                raise
        for _ in answers if finished else ():
            finished()  # type: ignore[misc]
        return answers

    def kill(self) -> None:
        pass
