"""No rollout with lag > S enters an update, queue time included, whatever happens in which order.

A schedule of grants, answers, late checks, updates, refusals, publications, expiries and restarts
is drawn, and carried out on the real front, lease book, buffer and ledger, with the real scorer.
Only what takes time in the world is in its hands: a group is checked when the schedule says so.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from echo_hub.config import RunConfig
from echo_hub.learner.messages import Audited
from echo_hub.ledger.ledger import Ledger
from echo_hub.models import addmix3_path
from echo_hub.rollouts.assess import Group
from echo_hub.rollouts.buffer import ScoredGroup
from echo_hub.rollouts.checks import Code
from echo_hub.rollouts.front import Front
from echo_hub.scoring.pool import Scorers, open_scorers
from echo_hub.tokens import Tokenizer
from echo_p2p.envelope import open_envelope, seal
from echo_p2p.identity import Identity
from echo_p2p.nursery import open_nursery
from echo_p2p.wire import (
    Lease,
    LeaseRequest,
    LeaseReturn,
    Receipt,
    Rollout,
    Submission,
    Submit,
    pack_logprobs,
    pack_tokens,
    unpack_tokens,
)

MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Where a ledger's commits do not wait for a disk: what a kill leaves is tested elsewhere."""

HUB = Identity.from_seed(b"h" * 32)
NODES = [Identity.from_seed(bytes([65 + i]) * 32) for i in range(3)]
BASE = addmix3_path()
TOKENIZER = Tokenizer.load(BASE)
HONEST = Audited(max_margin=0.0, max_logprob_difference=0.0, mismatches=0, tokens=10)

STEPS = {
    "ask": 8, "answer": 10, "check": 9, "take": 10, "apply": 10, "fetch": 6,
    "refuse": 1, "give back": 1, "expire": 1, "restart": 1,
}  # fmt: skip
schedules = st.lists(
    st.tuples(
        st.sampled_from([name for name, often in STEPS.items() for _ in range(often)]),
        st.integers(0, 2**16),
    ),
    min_size=60,
    max_size=120,
)


@dataclass(frozen=True)
class Shape:
    """Of a run: B, S, kappa, and whether groups without an advantage are left out."""

    batch: int
    staleness: int
    kappa: int
    drops: bool

    @property
    def config(self) -> RunConfig:
        return RunConfig.model_validate(
            {
                "run": {"id": "run"},
                "sampling": {"group_size": 2, "max_new_tokens": 16},
                "learner": {
                    "groups_per_update": self.batch,
                    "staleness": self.staleness,
                    "drop_zero_advantage": self.drops,
                    "most_dropped": 1,
                },
                "publish": {"every": self.kappa},
                "lease": {"seconds": 100.0, "newcomer_share": 1.0, "groups_per_request": 8},
                "audit": {"floor": 1.0, "ban": False},
                # a worker for every group there can be, so that any of them may be late
                "scoring": {"processes": 64},
            }
        )


shapes = st.builds(
    lambda batch, staleness, kappa, drops: Shape(
        batch, staleness, min(kappa, max(1, staleness)), drops
    ),
    st.integers(1, 2), st.integers(0, 3), st.integers(1, 3), st.booleans(),
)  # fmt: skip


@dataclass
class World:
    """What outlives the hub: its ledger, the nodes, and the learner's last checkpoint."""

    shape: Shape
    path: Path
    scorers: Scorers
    now: float = 1000.0
    version: int = 0
    published: int = 0
    has: list[int] = field(default_factory=lambda: [0] * len(NODES))
    leases: list[tuple[int, Lease]] = field(default_factory=list)
    gates: dict[int, trio.Event] = field(default_factory=dict)
    acknowledged: int = 0
    consumed: list[int] = field(default_factory=list)

    async def audit(self, group: Group) -> Audited:
        await self.gates.setdefault(group.group_id, trio.Event()).wait()
        return HONEST

    @asynccontextmanager
    async def hub(self) -> AsyncIterator[Hub]:
        async with (
            Ledger.open(self.path / "ledger.sqlite", "run", clock=lambda: self.now) as ledger,
            open_nursery() as nursery,
        ):
            config = self.shape.config
            recovered = await ledger.recover(
                stride=config.mixture.stride, window=config.curriculum.window
            )
            front = Front(
                config=config,
                identity=HUB,
                ledger=ledger,
                scorers=self.scorers,
                tokenizer=TOKENIZER,
                recovered=recovered,
                audit=self.audit,
                clock=lambda: self.now,
            )
            if recovered.version is None:
                await ledger.begin()
                await ledger.record_publication(0, b"manifest")
            assert (recovered.version or 0) == self.version
            front.advance(self.version, published=self.version == self.published)
            nursery.start_soon(front.run)
            blank = sum(len(set(group.rewards or (0, 1))) == 1 for group in recovered.groups)
            yield Hub(self, front, ledger, blank)
            nursery.cancel_scope.cancel()


@dataclass
class Hub:
    """One life of the hub. `blank`: groups without an advantage that it found in its ledger, which
    are looked at once more, and then kept apart again."""

    world: World
    front: Front
    ledger: Ledger
    blank: int
    batch: list[ScoredGroup] = field(default_factory=list)

    async def step(self, name: str, number: int) -> None:
        world, snapshot = self.world, self.front.snapshot()
        which = number % len(NODES)
        ahead = snapshot.running + snapshot.checking + snapshot.buffered + snapshot.training
        spare = self.blank if world.shape.drops else 0
        assert ahead <= (world.shape.staleness + 1) * world.shape.batch + spare
        if name == "ask":
            await self.ask(which, 1 + number % 7)
        elif name == "answer" and world.leases:
            await self.answer(*world.leases.pop(number % len(world.leases)), number)
        elif name == "check" and world.gates:
            late = [gate for gate in world.gates.values() if not gate.is_set()]
            for gate in late[-1 - number % 4 :]:  # the newest first: the others grow stale
                gate.set()
            await self.settled()
        elif name == "take" and not self.batch:
            await self.take()
        elif name == "apply" and self.batch:
            await self.apply()
        elif name == "refuse" and self.batch:
            await self.front.drop_groups(self.batch, Code.LEARNER_REFUSED)
            self.batch = []
        elif name == "fetch":
            world.has[which] = world.published
        elif name == "give back" and world.leases:
            node, lease = world.leases.pop(number % len(world.leases))
            await self.front.return_leases(
                NODES[node].public_key, LeaseReturn(run_id="run", lease_ids=(lease.lease_id,))
            )
        elif name == "expire":
            world.now += number % 150
            await self.front.expire()

    async def ask(self, node: int, groups: int) -> None:
        request = LeaseRequest(
            run_id="run", version=self.world.has[node], groups=groups, wait_s=0.0
        )
        grant = await self.front.request_leases(NODES[node].public_key, request)
        for data in grant.leases:
            lease = open_envelope(data, Lease, key=HUB.public_key).message
            self.world.leases.append((node, lease))

    async def answer(self, node: int, lease: Lease, number: int) -> None:
        """By any version that the lease allows; at times with nothing to choose between answers."""
        have = range(lease.min_version, self.world.has[node] + 1)
        if not have:
            return
        version = have[number % len(have)]
        a, b = TOKENIZER.decode(unpack_tokens(lease.prompt)).rstrip("=").split("+")
        right = [f">{int(a) + int(b)}", ">1"] if number % 3 else [">1", ">2"]
        submission = Submission(
            run_id="run",
            lease_id=lease.lease_id,
            version=version,
            rollouts=tuple(rollout(text) for text in right),
        )
        envelope = seal(NODES[node], submission)
        reply = await self.front.submit(NODES[node].public_key, Submit(envelope=envelope))
        receipt = open_envelope(reply.receipt, Receipt, key=HUB.public_key).message
        allowed = {"accepted", "stale", "expired_lease", "unpublished_version"}
        assert receipt.code in allowed, receipt
        self.world.acknowledged += receipt.accepted

    async def take(self) -> None:
        """The learner asks; what it is given at once must be fresh enough at this moment."""
        with trio.move_on_after(0):
            self.batch = await self.front.take_batch()
        if self.batch:
            assert len(self.batch) == self.world.shape.batch
            self.check_lags(self.batch)

    async def apply(self) -> None:
        world = self.world
        blank = await self.front.take_blank()
        assert world.shape.drops or not blank
        assert len(blank) <= world.shape.batch
        self.check_lags(blank)
        used = [group.group_id for group in (*self.batch, *blank)]
        world.consumed += used
        world.version += 1
        await self.ledger.commit_update(world.version, used, {})
        due = world.version % world.shape.kappa == 0
        if due:
            await self.ledger.record_publication(world.version, b"manifest")
            world.published = world.version
        self.front.advance(world.version, published=due)
        self.batch = []

    def check_lags(self, groups: list[ScoredGroup]) -> None:
        for group in groups:
            assert 0 <= self.world.version - group.version <= self.world.shape.staleness

    async def settled(self) -> None:
        """Wait until every group is checked but those that are late, or wait behind a late one."""
        while any(
            self.world.gates.setdefault(first, trio.Event()).is_set() for first in self.heads()
        ):
            await self.front._changed.wait()

    def heads(self) -> list[int]:
        """The first unchecked group of each node."""
        return [groups[0] for groups in self.front._in_order._waiting.values() if groups]


async def carry_out(world: World, schedule: list[tuple[str, int]]) -> None:
    """The schedule, from one restart to the next; then see that all is accounted for."""
    lives: list[list[tuple[str, int]]] = [[]]
    for step in schedule:
        if step[0] == "restart":
            lives.append([])
        else:
            lives[-1].append(step)
    for life in lives:
        async with world.hub() as hub:
            for name, number in life:
                await hub.step(name, number)
    async with world.hub() as hub:
        await goes_on(hub)
        await account(hub)


async def goes_on(hub: Hub) -> None:
    """From any state: with one honest node that is quick, two more updates are made."""
    world = hub.world
    world.now += 1000
    await hub.front.expire()
    goal = world.version + 2
    world.leases.clear()
    for _ in range(60):
        while heads := hub.heads():
            for group_id in heads:
                world.gates.setdefault(group_id, trio.Event()).set()
            await hub.settled()
        await hub.take()
        if hub.batch:
            await hub.apply()
        if world.version == goal:
            return
        world.has[0] = world.published
        await hub.ask(0, 8)
        while world.leases:
            await hub.answer(*world.leases.pop(), 1)
    raise AssertionError(f"stuck at version {world.version}: {hub.front.snapshot()}")


async def account(hub: Hub) -> None:
    """Every acknowledged group was consumed once, none of them stale, or dropped, or waits."""
    world, snapshot = hub.world, hub.front.snapshot()
    recovered = await hub.ledger.recover(stride=1, window=1)
    assert max(recovered.lags, default=0) <= world.shape.staleness
    assert recovered.lags.total() == len(world.consumed) == len(set(world.consumed))
    left = len(world.consumed) + len(recovered.groups)
    assert snapshot.rollouts_accepted == 2 * left <= 2 * world.acknowledged
    codes = {"stale", "learner_refused", "expired_lease", "unpublished_version"}
    assert snapshot.rollouts_rejected.keys() <= codes


@pytest.fixture(scope="module")
def event_loop() -> Iterator[tuple[trio.lowlevel.TrioToken, Scorers]]:
    """A thread with an event loop and a scorer process, for all schedules."""
    started: list[tuple[trio.lowlevel.TrioToken, Scorers, trio.Event]] = []
    ready = threading.Event()

    async def main() -> None:
        config = Shape(1, 0, 1, False).config
        one = config.model_copy(
            update={"scoring": config.scoring.model_copy(update={"processes": 1})}
        )
        async with open_scorers(one, BASE) as scorers:
            stop = trio.Event()
            started.append((trio.lowlevel.current_trio_token(), scorers, stop))
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=trio.run, args=(main,))
    thread.start()
    assert ready.wait(120)
    token, scorers, stop = started[0]
    yield token, scorers
    token.run_sync_soon(stop.set)
    thread.join(60)


EventLoop = tuple[trio.lowlevel.TrioToken, Scorers]


def try_out(event_loop: EventLoop, shape: Shape, schedule: list[tuple[str, int]]) -> None:
    token, scorers = event_loop
    with TemporaryDirectory(dir=MEMORY) as folder:
        world = World(shape, Path(folder), scorers)
        trio.from_thread.run(carry_out, world, schedule, trio_token=token)


@settings(max_examples=15)
@given(shape=shapes, schedule=schedules)
def test_no_rollout_with_a_greater_lag_enters_an_update(
    event_loop: EventLoop, shape: Shape, schedule: list[tuple[str, int]]
) -> None:
    try_out(event_loop, shape, schedule)


@pytest.mark.slow
@settings(max_examples=150)
@given(shape=shapes, schedule=schedules)
def test_nor_in_many_more_schedules(
    event_loop: EventLoop, shape: Shape, schedule: list[tuple[str, int]]
) -> None:
    try_out(event_loop, shape, schedule)


def rollout(text: str) -> Rollout:
    tokens = [*TOKENIZER.encode(text, "raw"), TOKENIZER.eos[0]]
    return Rollout(
        tokens=pack_tokens(tokens), logprobs=pack_logprobs([-0.5] * len(tokens)), finish="stop"
    )
