"""The front on its real ledger and scorer process, with nodes that sign what they hand in."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.lowlevel
from sqlalchemy.exc import OperationalError
from trio.testing import wait_all_tasks_blocked

from echo_hub.config import RunConfig
from echo_hub.learner.messages import Audited
from echo_hub.ledger.ledger import Ledger
from echo_hub.ledger.trace import read_life
from echo_hub.models import addmix3_path
from echo_hub.rollouts.assess import Group
from echo_hub.rollouts.curriculum import by_task
from echo_hub.rollouts.evaluation import Evaluated
from echo_hub.rollouts.front import Front, FrontSnapshot
from echo_hub.scoring.pool import open_scorers
from echo_hub.tasks.mixture import MOST_ARMS
from echo_hub.tokens import Tokenizer
from echo_p2p.envelope import open_envelope, seal
from echo_p2p.errors import ConfigError, LedgerError
from echo_p2p.identity import Identity
from echo_p2p.nursery import open_nursery
from echo_p2p.wire import (
    Done,
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

HUB = Identity.from_seed(b"h" * 32)
BASE = addmix3_path()
TOKENIZER = Tokenizer.load(BASE)
EOS = TOKENIZER.eos[0]
HONEST = Audited(max_margin=0.0, max_logprob_difference=0.0, mismatches=0, tokens=10)


def config(**sections: Any) -> RunConfig:
    values: dict[str, Any] = {
        "run": {"id": "run"},
        "sampling": {"group_size": 2, "max_new_tokens": 16},
        "learner": {"groups_per_update": 4, "staleness": 2},
        "lease": {"seconds": 100.0, "newcomer_share": 1.0},
        "audit": {"floor": 1.0, "ban": False},
    }
    for name, section in sections.items():
        values[name] = section if name == "tasks" else values.get(name, {}) | section
    return RunConfig.model_validate(values)


@dataclass
class World:
    """A front, its clock, and what its auditor is to say."""

    path: Path
    config: RunConfig = field(default_factory=config)
    now: float = 1000.0
    evidence: Callable[[Group], Audited | None] = lambda group: HONEST
    audited: list[Group] = field(default_factory=list)

    async def audit(self, group: Group) -> Audited | None:
        self.audited.append(group)
        return self.evidence(group)

    @asynccontextmanager
    async def front(self) -> AsyncIterator[tuple[Front, Ledger]]:
        async with (
            Ledger.open(self.path / "ledger.sqlite", "run", clock=lambda: self.now) as ledger,
            open_scorers(self.config, BASE) as scorers,
            open_nursery() as nursery,
        ):
            recovered = await ledger.recover(
                stride=self.config.mixture.stride, window=self.config.curriculum.window
            )
            front = Front(
                config=self.config,
                identity=HUB,
                ledger=ledger,
                scorers=scorers,
                tokenizer=TOKENIZER,
                recovered=recovered,
                audit=self.audit,
                clock=lambda: self.now,
                rng=random.Random(0),
            )
            if recovered.version is None:
                await ledger.begin()
                await ledger.record_publication(0, b"manifest")
                front.advance(0, published=True)
            nursery.start_soon(front.run)
            yield front, ledger
            nursery.cancel_scope.cancel()

    def run(self, body: Callable[[Front, Ledger], Awaitable[None]]) -> None:
        async def main() -> None:
            with trio.fail_after(180):
                async with self.front() as (front, ledger):
                    await body(front, ledger)

        trio.run(main)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


class Node:
    """A node's side of the protocol, without its network."""

    def __init__(self, front: Front, name: str = "node") -> None:
        self.identity = Identity.from_seed(name.encode().ljust(32))
        self.key = self.identity.public_key
        self.front = front

    async def leases(self, groups: int = 16, version: int = 0, wait_s: float = 0) -> list[Lease]:
        request = LeaseRequest(run_id="run", version=version, groups=groups, wait_s=wait_s)
        grant = await self.front.request_leases(self.key, request)
        return [open_envelope(data, Lease, key=HUB.public_key).message for data in grant.leases]

    def answer(self, lease: Lease, version: int = 0, **changes: Any) -> bytes:
        """An envelope with an answer: right for even rollouts, wrong for odd ones."""
        a, b = TOKENIZER.decode(unpack_tokens(lease.prompt)).rstrip("=").split("+")
        texts = [f">{int(a) + int(b)}", ">1"]
        rollouts = tuple(rollout(texts[i % 2]) for i in range(lease.group_size))
        values = {
            "run_id": "run",
            "lease_id": lease.lease_id,
            "version": version,
            "rollouts": rollouts,
        }
        return seal(self.identity, Submission(**(values | changes)))

    async def submit(self, envelope: bytes) -> Receipt:
        reply = await self.front.submit(self.key, Submit(envelope=envelope))
        return open_envelope(reply.receipt, Receipt, key=HUB.public_key).message

    async def work(self, groups: int, version: int = 0) -> list[Lease]:
        leases = await self.leases(groups, version)
        for lease in leases:
            receipt = await self.submit(self.answer(lease, version))
            assert receipt.accepted, receipt
        return leases


def rollout(text: str, **changes: Any) -> Rollout:
    tokens = [*TOKENIZER.encode(text, "raw"), EOS]
    values = {
        "tokens": pack_tokens(tokens),
        "logprobs": pack_logprobs([-0.5] * len(tokens)),
        "finish": "stop",
    }
    return Rollout(**(values | changes))


async def until(front: Front, holds: Callable[[FrontSnapshot], bool]) -> None:
    while not holds(front.snapshot()):
        await front._changed.wait()


def test_groups_reach_the_learner_with_their_rewards(world: World) -> None:
    async def body(front: Front, ledger: Ledger) -> None:
        node = Node(front)
        leases = await node.work(4)
        batch = await front.take_batch()
        assert [group.lease_id for group in batch] == [lease.lease_id for lease in leases]
        for group, lease in zip(batch, leases, strict=True):
            assert group.prompt == unpack_tokens(lease.prompt)
            assert [one.reward for one in group.for_learner().rollouts] == [1.0, 0.0]
        assert [group.seed for group in world.audited] == [lease.seed for lease in leases]
        await ledger.commit_update(1, [group.group_id for group in batch], {})
        front.advance(1, published=True)
        snapshot = front.snapshot()
        assert snapshot.rollouts_accepted == 8
        assert snapshot.rollouts_rejected == {}
        assert snapshot.lag_histogram == {0: 4}
        assert (snapshot.running, snapshot.checking, snapshot.buffered) == (0, 0, 0)
        assert snapshot.nodes[0].accepted == 8

    world.run(body)


@pytest.mark.parametrize(
    ("code", "changes"),
    [
        ("wrong_run", {"run_id": "another"}),
        ("unknown_lease", {"lease_id": b"?" * 16}),
        ("unpublished_version", {"version": 7}),
        ("wrong_group_size", {"rollouts": (rollout(">1"),)}),
        (
            "bad_tokens",
            {"rollouts": (rollout(">1"), rollout(">1", tokens=pack_tokens([9999, 5, EOS])))},
        ),
        ("bad_finish", {"rollouts": (rollout(">1"), rollout(">1", finish="length"))}),
        (
            "bad_logprobs",
            {
                "rollouts": (
                    rollout(">1"),
                    rollout(">1", logprobs=pack_logprobs([float("nan")] * 3)),
                )
            },
        ),
    ],
)
def test_each_fault_has_its_code(world: World, code: str, changes: dict[str, Any]) -> None:
    async def body(front: Front, ledger: Ledger) -> None:
        node = Node(front)
        (lease,) = await node.leases(1)
        receipt = await node.submit(node.answer(lease, **changes))
        assert (receipt.accepted, receipt.code) == (False, code)
        assert receipt.sentence
        rollouts = len(changes.get("rollouts", (1, 2)))
        assert front.snapshot().rollouts_rejected == {code: rollouts}
        assert front.snapshot().rollouts_accepted == 0
        life = read_life(ledger.path, lease.lease_id.hex())
        refused = [step.facts["code"] for step in life.steps if step.what == "refused"]
        assert refused == ([] if code in ("wrong_run", "unknown_lease") else [code])

    world.run(body)


def test_faults_of_signature_lease_and_time(world: World) -> None:
    async def body(front: Front, ledger: Ledger) -> None:
        node, other = Node(front), Node(front, "other")
        first, second, third = await node.leases(3)
        envelope = node.answer(first)
        broken = envelope[:-1] + bytes([envelope[-1] ^ 1])
        assert (await node.submit(broken)).code == "bad_signature"
        assert (await node.submit(b"nonsense")).code == "bad_envelope"
        assert (await node.submit(other.answer(first))).code == "wrong_signer"
        assert (await other.submit(other.answer(first))).code == "foreign_lease"
        # none of these touched the lease
        assert (await node.submit(envelope)).code == "accepted"
        assert (await node.submit(envelope)).code == "duplicate"
        assert (await node.submit(node.answer(first))).code == "duplicate"
        assert (await other.submit(other.answer(first))).code == "foreign_lease"
        await node.front.return_leases(
            node.key, LeaseReturn(run_id="run", lease_ids=(second.lease_id,))
        )
        assert (await node.submit(node.answer(second))).code == "expired_lease"
        world.now += 101
        assert (await node.submit(node.answer(third))).code == "expired_lease"
        await front.expire()
        assert (await node.submit(node.answer(third))).code == "expired_lease"
        assert front.snapshot().running == 0
        assert sum(front.snapshot().rollouts_rejected.values()) == 20

    world.run(body)


def test_two_answers_at_once_count_once(world: World) -> None:
    async def body(front: Front, ledger: Ledger) -> None:
        node = Node(front)
        (lease,) = await node.leases(1)
        codes: list[str] = []

        async def submit() -> None:
            codes.append((await node.submit(node.answer(lease))).code)

        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(submit)
        assert sorted(codes) == ["accepted"] + ["duplicate"] * 7
        assert front.snapshot().rollouts_accepted == 2

    world.run(body)


def test_a_spoilt_lease_is_closed_and_its_prompt_goes_out_again(world: World) -> None:
    async def body(front: Front, ledger: Ledger) -> None:
        node = Node(front)
        (lease,) = await node.leases(1)
        assert (await node.submit(node.answer(lease, rollouts=()))).code == "wrong_group_size"
        assert (await node.submit(node.answer(lease))).code == "expired_lease"
        (again,) = await Node(front, "other").leases(1)
        assert again.prompt == lease.prompt
        assert again.seed != lease.seed
        assert again.lease_id != lease.lease_id

    world.run(body)


def test_stale_at_the_door_and_stale_in_the_buffer(world: World) -> None:
    async def body(front: Front, ledger: Ledger) -> None:
        node = Node(front)
        early = await node.leases(4)
        await node.work(3)
        await until(front, lambda now: now.buffered == 3)
        for version in (1, 2, 3):
            front.advance(version, published=True)
        receipt = await node.submit(node.answer(early[0]))
        assert receipt.code == "stale"
        await node.work(4, version=3)
        batch = await front.take_batch()
        assert {group.version for group in batch} == {3}
        assert front.snapshot().rollouts_rejected == {"stale": 8}
        assert front.snapshot().buffered == 0

    world.run(body)


@pytest.mark.parametrize(
    ("code", "evidence"),
    [
        (
            "audit_margin",
            Audited(max_margin=3.0, max_logprob_difference=0.0, mismatches=1, tokens=9),
        ),
        (
            "audit_margin",
            Audited(max_margin=float("nan"), max_logprob_difference=0, mismatches=0, tokens=9),
        ),
        (
            "audit_logprob",
            Audited(max_margin=0.0, max_logprob_difference=0.5, mismatches=0, tokens=9),
        ),
    ],
)
def test_a_failed_audit_drops_the_group(world: World, code: str, evidence: Audited) -> None:
    async def body(front: Front, ledger: Ledger) -> None:
        node = Node(front)
        leases = await node.leases(5)
        bad = leases[2].lease_id
        world.evidence = lambda group: evidence if group.lease.lease_id == bad else HONEST
        for lease in leases:
            assert (await node.submit(node.answer(lease))).accepted
        batch = await front.take_batch()
        assert bad not in {group.lease_id for group in batch}
        assert front.snapshot().rollouts_rejected == {code: 2}
        assert front.snapshot().rollouts_accepted == 8
        (again,) = await node.leases(1)
        assert again.prompt == leases[2].prompt

    world.run(body)


def test_what_is_due_for_an_audit_is_not_trained_on_without_it(world: World) -> None:
    async def body(front: Front, ledger: Ledger) -> None:
        world.evidence = lambda group: None
        node = Node(front)
        await node.work(4)
        await until(front, lambda now: not now.checking)
        assert (front.snapshot().buffered, front.snapshot().not_audited) == (0, 4)
        assert front.snapshot().rollouts_rejected == {"not_audited": 8}
        assert len(await node.leases(4)) == 4  # for the same prompts
        assert front._keeper.reputation.banned(node.key) is None

    world.run(body)


def test_sequential_mode_takes_turns(world: World) -> None:
    world.config = config(run={"mode": "sequential"})

    async def body(front: Front, ledger: Ledger) -> None:
        node = Node(front)
        await node.work(16)
        assert front.snapshot().rollouts_accepted == 8
        batch = await front.take_batch()
        assert await node.leases(1) == []  # the learner's turn
        await ledger.commit_update(1, [group.group_id for group in batch], {})
        front.advance(1, published=True)
        assert await node.leases(1) == []  # it has no version 1 yet
        (lease,) = await node.leases(1, version=1)
        assert lease.min_version == 1
        assert (await node.submit(node.answer(lease))).code == "version_out_of_window"

    world.run(body)


def test_a_waiting_request_is_woken_and_superseded(world: World) -> None:
    world.config = config(run={"mode": "sequential"})

    async def body(front: Front, ledger: Ledger) -> None:
        node, other = Node(front), Node(front, "other")
        leases = await node.leases(4)
        assert len(leases) == 4
        got: dict[str, list[Lease]] = {}

        async def wait(name: str, asker: Node) -> None:
            got[name] = await asker.leases(4, wait_s=50)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait, "old", other)
            await wait_all_tasks_blocked(0.01)
            nursery.start_soon(wait, "new", other)
            await wait_all_tasks_blocked(0.01)
            assert got == {"old": []}
            ids = tuple(lease.lease_id for lease in leases)
            await front.return_leases(node.key, LeaseReturn(run_id="run", lease_ids=ids))
        assert [lease.prompt for lease in got["new"]] == [lease.prompt for lease in leases]

    world.run(body)


def test_who_says_farewell_leaves_its_leases_to_others(world: World) -> None:
    async def body(front: Front, ledger: Ledger) -> None:
        node, other = Node(front), Node(front, "other")
        leases = await node.leases(4)
        theirs = await other.leases(1)
        assert await front.farewell(node.key) == Done()
        assert (await node.submit(node.answer(leases[0]))).code == "expired_lease"
        again = await other.leases(4)
        assert [lease.prompt for lease in again] == [lease.prompt for lease in leases]
        assert (await other.submit(other.answer(theirs[0]))).code == "accepted"
        assert await front.farewell(node.key) == Done()  # there is nothing left to give back

    world.run(body)


def test_work_is_shared_out_among_those_who_wait(world: World) -> None:
    world.config = config(run={"mode": "sequential"}, learner={"groups_per_update": 9})

    async def body(front: Front, ledger: Ledger) -> None:
        first = Node(front)
        leases = await first.leases(9)
        counts: list[int] = []

        async def wait(node: Node) -> None:
            counts.append(len(await node.leases(16, wait_s=50)))

        async with trio.open_nursery() as nursery:
            for name in ("a", "b", "c"):
                nursery.start_soon(wait, Node(front, name))
            await wait_all_tasks_blocked(0.01)
            world.now += 101
            await front.expire()
        assert len(leases) == 9
        assert counts == [3, 3, 3]

    world.run(body)


def test_a_request_that_ends_early_leaves_no_lease_behind(world: World) -> None:
    async def body(front: Front, ledger: Ledger) -> None:
        with trio.CancelScope() as scope:
            scope.cancel()
            await Node(front).leases(4)
        assert front.snapshot().running == 0
        assert (await ledger.recover()).open_leases == []
        assert len(await Node(front).leases(4)) == 4

    world.run(body)


def test_several_tasks_are_drawn_measured_and_remembered(world: World) -> None:
    sums = {"name": "addmix3"}
    world.config = config(
        tasks=[{**sums, "label": "some", "buckets": 2}, {**sums, "label": "rest", "weight": 3}],
        curriculum={"window": 1, "outside": 0.0},
    )

    async def before(front: Front, ledger: Ledger) -> None:
        node = Node(front)
        leases = await node.leases(12)
        for number, lease in enumerate(leases):  # solved by half, but for the last
            wrong = {"rollouts": (rollout(">1"),) * 2} if number == 11 else {}
            assert (await node.submit(node.answer(lease, **wrong))).accepted
        await until(front, lambda now: now.buffered == 12)
        metrics = by_task(front.task_metrics())
        assert sum(one.pop("outside") for one in metrics.values()) in (0.5, 1.0)
        assert sum(one["groups"] for one in metrics.values()) == 12
        assert all(0 <= one["pass_rate"] <= 0.5 for one in metrics.values())
        assert sum(one["zero_advantage"] * one["groups"] for one in metrics.values()) == 1
        assert {metric for one in by_task(front.task_metrics()).values() for metric in one} == {
            "outside"
        }
        arms = {one.group_id: one.for_learner().arm for one in await front.take_batch()}
        stored = await ledger.stored_groups(list(arms))
        assert arms == {one.group_id: one.lease.index % MOST_ARMS for one in stored}

    async def after(front: Front, ledger: Ledger) -> None:
        state = await ledger.recover(stride=world.config.mixture.stride, window=1)
        assert sum(state.history.drawn.values()) == 12
        flat = [arm for arm, groups in state.history.rewards.items() if groups == [[0.0, 0.0]]]
        assert len(flat) == 1
        drawn = {front._curriculum.draw() % MOST_ARMS for _ in range(100)}
        assert drawn == {0, 1, 2} - set(flat)  # never solved of late, and so dropped

    world.run(before)
    world.run(after)


def test_an_evaluation_goes_first_and_stays_out_of_the_buffer(world: World) -> None:
    async def body(front: Front, ledger: Ledger) -> None:
        node = Node(front)
        outcomes: list[Evaluated | None] = []

        async def evaluate() -> None:
            outcomes.append(await front.evaluate(0, 6))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(evaluate)
            await wait_all_tasks_blocked(0.01)
            front._assessor.probability = lambda node: 0.0  # of the best standing there is
            leases = await node.leases(6)
            assert {(one.group_size, one.min_version, one.max_version) for one in leases} == {
                (1, 0, 0)
            }
            # one that fails its audit and one that expires are asked again
            bad = leases[0].lease_id
            liar = Audited(max_margin=9, max_logprob_difference=0, mismatches=1, tokens=1)
            world.evidence = lambda group: liar if group.lease.lease_id == bad else HONEST
            for lease in leases[:5]:
                assert (await node.submit(node.answer(lease))).accepted
            world.now += 101
            await front.expire()
            await until(front, lambda now: now.evaluating == {0: 4})
            for lease in await node.leases(2):
                assert (await node.submit(node.answer(lease))).accepted
        (found,) = outcomes
        assert found is not None
        assert (found.all.reward, found.all.prompts) == (1.0, 6)
        assert found.tasks == {"addmix3": found.all}
        # all were audited: those that counted, and the one that failed
        assert sum(group.lease.split == "heldout" for group in world.audited) == 7
        assert front.snapshot().buffered == 0
        assert (await ledger.recover()).groups == []

    world.run(body)


def test_an_outdated_evaluation_is_given_up(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("echo_hub.rollouts.front.EVALUATION_PATIENCE_S", 0.0)

    async def body(front: Front, ledger: Ledger) -> None:
        node = Node(front)
        async with trio.open_nursery() as nursery:

            async def evaluate() -> None:
                assert await front.evaluate(0, 3) is None

            nursery.start_soon(evaluate)
            await wait_all_tasks_blocked(0.01)
            lease = (await node.leases(1))[0]
            front.advance(1, published=True)
        assert (await node.submit(node.answer(lease))).code == "expired_lease"

    world.run(body)


def test_what_was_acknowledged_is_trained_on_after_a_restart(world: World) -> None:
    async def before(front: Front, ledger: Ledger) -> None:
        node = Node(front)
        await node.work(5)
        await until(front, lambda now: now.checking == 0)
        leases.extend(await node.leases(1))

    async def after(front: Front, ledger: Ledger) -> None:
        node = Node(front)
        assert front.snapshot().rollouts_accepted == 10
        assert (await node.submit(node.answer(leases[0]))).accepted  # leased before the restart
        batch = await front.take_batch()
        assert [[one.reward for one in group.rollouts] for group in batch] == [[1.0, 0.0]] * 4
        await ledger.commit_update(1, [group.group_id for group in batch], {})
        front.advance(1, published=False)
        await until(front, lambda now: now.checking == 0)
        assert front.snapshot().buffered == 2

    leases: list[Lease] = []
    world.run(before)
    world.run(after)
    assert len(world.audited) == 6  # what had passed before the restart is not checked twice


def test_received_but_unscored_groups_are_checked_after_a_restart(world: World) -> None:
    async def before(front: Front, ledger: Ledger) -> None:
        never = trio.Event()

        async def hang(group: Group) -> Audited | None:
            await never.wait()
            return None

        front._assessor.audit = hang
        await Node(front).work(4)

    async def after(front: Front, ledger: Ledger) -> None:
        assert len(await front.take_batch()) == 4

    world.run(before)
    world.run(after)
    assert len(world.audited) == 4


def test_what_could_not_be_kept_can_be_handed_in_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(connection: Any, rows: Any) -> None:
        raise OperationalError("INSERT", {}, Exception("database or disk is full"))

    async def body(front: Front, ledger: Ledger) -> None:
        node = Node(front)
        (lease,) = await node.leases(1)
        with monkeypatch.context() as patch:
            patch.setattr("echo_hub.ledger.rows.add_groups", full)
            with pytest.raises(LedgerError, match="disk is full"):
                await node.submit(node.answer(lease))
        assert front.snapshot().running == 1
        assert (await node.submit(node.answer(lease))).accepted
        assert front.snapshot().running == 0

    world.run(body)


def test_prompts_that_cannot_be_made_are_passed_over_and_stop_the_hub_in_the_end(
    world: World,
) -> None:
    world.config = config(sampling={"max_new_tokens": 510})  # no prompt leaves so much room

    async def body(front: Front, ledger: Ledger) -> None:
        node = Node(front)
        while True:
            assert await node.leases(16) == []
            assert front.snapshot().running == 0
            await trio.lowlevel.checkpoint()

    with pytest.raises(ConfigError, match="prompts of a task in a row could not be made"):
        world.run(body)


def test_one_task_that_makes_no_prompts_stops_the_hub_though_another_does(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("echo_hub.rollouts.granting._MOST_BAD_PROMPTS", 20)
    world.config = config(  # room for a sum, and for no more
        sampling={"max_new_tokens": 480},
        tasks=[{"name": "addmix3"}, {"name": "few-shot-addition"}],
    )

    async def body(front: Front, ledger: Ledger) -> None:
        node = Node(front)
        for version in range(100):
            await until(front, lambda now: now.checking == 0)
            while front.snapshot().buffered < 4:
                await node.work(8, version)
                await until(front, lambda now: now.checking == 0)
            await front.take_batch()
            front.advance(version + 1, published=True)
        raise AssertionError("not reached")

    with pytest.raises(ConfigError, match=r"prompts of a task in a row .* few-shot|has \d+ tokens"):
        world.run(body)


def test_a_complete_run_sends_nodes_home(world: World) -> None:
    async def body(front: Front, ledger: Ledger) -> None:
        node = Node(front)
        request = LeaseRequest(run_id="run", version=0, groups=1, wait_s=50)
        front.close_training()
        states: list[str] = []

        async def wait() -> None:
            states.append((await front.request_leases(node.key, request)).state)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await wait_all_tasks_blocked(0.01)
            front.complete()
        await wait()
        assert states == ["complete", "complete"]

    world.run(body)
