"""Turns that the hub itself replies to: asked over any number of sessions, until the lease ends.

`converse` answers the leases of one batch by turns: the engine generates one turn of every dialogue
that goes on, the hub says what follows, and the engine, which has kept what it computed, goes on.
Asking twice is harmless: the hub gives the answer that it gave.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import trio

from echo_node.engines.base import AsyncEngine, Completion, Job
from echo_node.engines.dialogues import Course
from echo_node.hub import Hub
from echo_node.notice import Notice
from echo_p2p.errors import PeerRefusedError
from echo_p2p.nursery import open_nursery
from echo_p2p.wire import HandedTurn, Lease, pack_tokens

AT_ONCE = 8
_AGAIN_S = 0.5  # after an answer that there is none yet
PASSING_REFUSALS = frozenset({"busy", "overloaded"})

Replies = list[list[int] | None]


@dataclass(eq=False)
class _Question:
    lease_id: bytes
    turns: tuple[HandedTurn, ...]
    replies: Replies | None = None
    done: trio.Event = field(default_factory=trio.Event)
    asked: bool = False


class HubTurns:
    """Questions to the hub. `ask` waits for the answer; `deliver` asks, during a session."""

    def __init__(self, notice: Notice, hub_now: Callable[[], float]) -> None:
        self._notice = notice
        self._hub_now = hub_now
        self._open: list[_Question] = []
        self._gave_up = False

    async def ask(self, lease: Lease, turns: Sequence[HandedTurn]) -> Replies | None:
        """What follows these turns; None if the lease ends, or the node, before it is known."""
        question = _Question(lease.lease_id, tuple(turns))
        self._open.append(question)
        self._notice.tell()
        try:
            if not self._gave_up:
                with trio.move_on_after(max(0.0, lease.expires_at - self._hub_now())):
                    await question.done.wait()
        finally:
            if question in self._open:
                self._open.remove(question)
        return question.replies

    def give_up(self) -> None:
        """The hub will not be reached any more."""
        self._gave_up = True
        for question in self._open:
            question.done.set()

    async def deliver(self, hub: Hub) -> None:
        """Ask what there is to ask; a NetError leaves it for the next session."""
        slots = trio.CapacityLimiter(AT_ONCE)
        for question in self._open:
            question.asked = False
        async with open_nursery() as nursery:
            while True:
                await self._notice.until(self._unasked)
                for question in self._open:
                    if not question.asked:
                        question.asked = True
                        nursery.start_soon(self._put, hub, question, slots)

    def _unasked(self) -> bool:
        return any(not question.asked for question in self._open)

    async def _put(self, hub: Hub, question: _Question, slots: trio.CapacityLimiter) -> None:
        while question in self._open:
            try:
                async with slots:
                    question.replies = await hub.turns(question.lease_id, question.turns)
            except PeerRefusedError as error:
                if error.code in PASSING_REFUSALS:
                    await trio.sleep(_AGAIN_S)
                    continue
                question.done.set()
                return
            if question.replies is not None:
                question.done.set()
                return
            await trio.sleep(_AGAIN_S)  # it has held the request for long, or is not honest


async def converse(
    engine: AsyncEngine, turns: HubTurns, batch: Sequence[tuple[Lease, list[Job]]]
) -> dict[bytes, list[Completion]]:
    """Answer leases, those without turns at the hub in the first round.

    Returns the answers by lease; a lease that ended while its dialogues went on has none.
    """
    courses = {
        lease.lease_id: [Course(job) if asks_hub(lease) else None for job in jobs]
        for lease, jobs in batch
    }
    answers: dict[bytes, list[Completion]] = {}
    going = [(lease, list(range(len(jobs)))) for lease, jobs in batch]
    jobs_of = {lease.lease_id: jobs for lease, jobs in batch}
    while going:
        asked = [
            _next(courses[lease.lease_id][i], jobs_of[lease.lease_id][i])
            for lease, rows in going
            for i in rows
        ]
        done = iter(await engine.generate(asked))
        waiting: list[tuple[Lease, list[int]]] = []
        for lease, rows in going:
            mine = [next(done) for _ in rows]
            if not asks_hub(lease):
                answers[lease.lease_id] = mine
                continue
            due = [i for i, turn in zip(rows, mine, strict=True) if _say(courses, lease, i, turn)]
            waiting.append((lease, due))
        going = await _hear_all(turns, courses, waiting)
    for lease, _ in batch:
        spoken = [course for course in courses[lease.lease_id] if course is not None]
        if spoken and all(course.dialogue.turns for course in spoken):
            answers[lease.lease_id] = [course.completion for course in spoken]
    return answers


def asks_hub(lease: Lease) -> bool:
    """Whether the hub itself replies in this lease."""
    return lease.turns is not None and not lease.turns.environment


Courses = dict[bytes, list[Course | None]]


def _next(course: Course | None, job: Job) -> Job:
    return job if course is None else course.next_turn


def _say(courses: Courses, lease: Lease, i: int, turn: Completion) -> bool:
    course = courses[lease.lease_id][i]
    assert course is not None
    return course.say(turn)


async def _hear_all(
    turns: HubTurns, courses: Courses, waiting: Sequence[tuple[Lease, list[int]]]
) -> list[tuple[Lease, list[int]]]:
    """Ask for all leases at once; those that go on, with the rollouts that do."""
    going: dict[bytes, list[int]] = {}

    async def hear(lease: Lease, due: list[int]) -> None:
        mine = courses[lease.lease_id]
        handed = [
            HandedTurn(
                rollout=i,
                number=len(course.dialogue.turns) - 1,
                tokens=pack_tokens(course.dialogue.turns[-1]),
            )
            for i in due
            if (course := mine[i]) is not None
        ]
        replies = await turns.ask(lease, handed)
        if replies is None:  # nothing can come of it any more
            courses[lease.lease_id] = []
            return
        going[lease.lease_id] = [
            i
            for i, reply in zip(due, replies, strict=True)
            if (course := mine[i]) is not None and course.hear(reply)
        ]

    async with open_nursery() as nursery:
        for lease, due in waiting:
            if due:
                nursery.start_soon(hear, lease, due)
    return [(lease, going[lease.lease_id]) for lease, _ in waiting if going.get(lease.lease_id)]
