"""Turns that the hub itself replies to: asked over any number of sessions, until the lease ends.

`converse` answers a lease by turns: the engine generates one turn of every dialogue that goes on,
the hub says what follows, and the engine, which has kept what it computed, goes on. Asking twice is
harmless: the hub gives the answer that it gave.
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
    engine: AsyncEngine,
    turns: HubTurns,
    lease: Lease,
    jobs: Sequence[Job],
    *,
    version: int,
    left: Callable[[int], None],
) -> list[Completion] | None:
    """Answer a lease in which the hub replies; None if it ended before its dialogues did.

    Args:
        left: told how many of the dialogues go on.
    """
    courses = [Course(job) for job in jobs]
    going = list(range(len(jobs)))
    while going:
        done = await engine.generate([courses[i].next_turn for i in going], version=version)
        due = [i for i, turn in zip(going, done, strict=True) if courses[i].say(turn)]
        left(len(due))
        if not due:
            break
        replies = await turns.ask(lease, [_handed(i, courses[i]) for i in due])
        if replies is None:
            return None
        going = [i for i, reply in zip(due, replies, strict=True) if courses[i].hear(reply)]
        left(len(going))
    return [course.completion for course in courses]


def _handed(rollout: int, course: Course) -> HandedTurn:
    """The turn that was just taken."""
    said = course.dialogue.turns
    return HandedTurn(rollout=rollout, number=len(said) - 1, tokens=pack_tokens(said[-1]))


def asks_hub(lease: Lease) -> bool:
    """Whether the hub itself replies in this lease."""
    return lease.turns is not None and not lease.turns.environment
