"""Dialogues at the hub: who is answered, in what order, once, and what outlives a restart.

With a real scorer process and a real ledger; only leases are made by hand.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import trio
import trio.testing

from echo_hub.config import RunConfig
from echo_hub.ledger.ledger import Ledger
from echo_hub.models import addmix3_path
from echo_hub.rollouts.dialogues import Dialogues
from echo_hub.rollouts.leases import OpenLease
from echo_hub.scoring.pool import open_scorers
from echo_hub.tokens import Tokenizer
from echo_p2p.errors import PeerRefusedError
from echo_p2p.nursery import open_nursery
from echo_p2p.wire import HandedTurn, Sampling, TurnRequest, pack_tokens, unpack_tokens

TOKENIZER = Tokenizer.load(addmix3_path())
STOP = TOKENIZER.eos[0]
NODE, OTHER = b"n" * 32, b"o" * 32
TASK = """
from pathlib import Path
from echo_hub.tasks import Prompt, Turns

def prompt(split, index):
    return Prompt("?", {}, Turns(4) if index < 9 else None)

def reply(prompt, answers):
    with Path(__file__).with_name("calls").open("a") as file:
        print(*answers, file=file)
    if answers[-1] == "bad":
        raise RuntimeError("no such tool")
    return None if answers[-1] == "end" else f"{len(answers)}:"

def reward(prompt, transcript):
    return 1.0
"""


@dataclass
class World:
    dialogues: Dialogues
    ledger: Ledger
    open: dict[bytes, OpenLease]
    calls: Path
    failed: list[str]

    async def ask(self, *turns: tuple[int, int, str], node: bytes = NODE) -> list[str | None]:
        """Turns as (rollout, number, text); what was replied."""
        handed = tuple(
            HandedTurn(rollout=rollout, number=number, tokens=pack_tokens(turn(text)))
            for rollout, number, text in turns
        )
        return await self.ask_raw(*handed, node=node)

    async def ask_raw(self, *handed: HandedTurn, node: bytes = NODE) -> list[str | None]:
        request = TurnRequest(run_id="run", lease_id=LEASE.lease_id, turns=handed)
        reply = await self.dialogues.take(node, request)
        assert reply.ready
        return [None if x is None else TOKENIZER.decode(unpack_tokens(x)) for x in reply.replies]

    def called(self) -> list[str]:
        return self.calls.read_text().splitlines() if self.calls.exists() else []


LEASE = OpenLease(
    lease_id=b"l" * 16, node=NODE, split="train", index=0, group_size=2, seed=1, min_version=0,
    max_version=None, issued_at=0.0, expires_at=9e9,
)  # fmt: skip
SAMPLING = Sampling(temperature=1.0, max_new_tokens=30, stop=TOKENIZER.eos)


def turn(text: str) -> list[int]:
    return [*TOKENIZER.encode(text, "raw"), STOP]


@asynccontextmanager
async def open_world(folder: Path) -> AsyncIterator[World]:
    (folder / "own.py").write_text(TASK)
    config = RunConfig.model_validate(
        {
            "run": {"id": "run"},
            "task": {"name": f"file:{folder}/own.py"},
            "sampling": {"max_new_tokens": 30, "turn_tokens": 8},
        }
    )
    failed: list[str] = []
    leases = {LEASE.lease_id: LEASE}

    async def on_failed(lease: OpenLease, why: str) -> None:
        failed.append(why)
        del leases[lease.lease_id]

    async with (
        Ledger.open(folder / "ledger.sqlite", "run", clock=time.time) as ledger,
        open_scorers(config, addmix3_path()) as scorers,
        open_nursery() as nursery,
    ):
        dialogues = Dialogues(
            scorers, ledger, SAMPLING, TOKENIZER.vocab_size, leases.get, lambda: 0.0, on_failed
        )
        dialogues.recover((await ledger.recover()).dialogues)
        nursery.start_soon(dialogues.run)
        yield World(dialogues, ledger, leases, folder / "calls", failed)
        nursery.cancel_scope.cancel()


def scene(folder: Path, body: Callable[[World], Awaitable[None]]) -> None:
    async def main() -> None:
        with trio.fail_after(180):
            async with open_world(folder) as world:
                await body(world)

    trio.run(main)


async def refused(
    world: World, code: str, *turns: tuple[int, int, str], node: bytes = NODE
) -> None:
    with pytest.raises(PeerRefusedError) as error:
        await world.ask(*turns, node=node)
    assert error.value.code == code
    assert "no such tool" not in error.value.message  # what a task says stays at the hub


def test_each_turn_is_asked_once_in_its_order(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        assert await world.ask((0, 0, "a"), (1, 0, "b")) == ["1:", "1:"]
        await refused(world, "bad_turn", (1, 2, "c"))  # turn 1 comes first
        assert await world.ask((1, 1, "c")) == ["2:"]
        assert await world.ask((0, 0, "a"), (1, 1, "c")) == ["1:", "2:"]  # a lost reply
        assert await world.ask((0, 1, "end")) == [None]
        assert world.called() == ["a", "b", "b c", "a end"]
        await refused(world, "other_turn", (0, 0, "b"))
        await refused(world, "bad_turn", (0, 2, "d"))  # the dialogue is over
        await refused(world, "bad_turn", (1, 3, "d"))  # turn 2 comes first
        assert await world.ask((1, 2, "d")) == ["3:"]
        await refused(world, "bad_turn", (1, 3, "e"))  # its last: nothing is said after it
        await refused(world, "bad_turn", (2, 0, "a"))
        await refused(world, "bad_turn", (0, 0, "a"), (1, 5, "x"))
        assert len(world.called()) == 5

    scene(tmp_path, body)


def test_turns_have_the_runs_limits_and_leases_their_node(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        await refused(world, "foreign_lease", (0, 0, "a"), node=OTHER)
        for tokens in ([], [5, STOP, STOP], [5], [5, STOP, 5], [99, STOP], [5] * 8 + [STOP]):
            with pytest.raises(PeerRefusedError) as error:
                await world.ask_raw(HandedTurn(rollout=0, number=0, tokens=pack_tokens(tokens)))
            assert error.value.code == "bad_turn"
        world.open[LEASE.lease_id] = replace(LEASE, index=9)  # a prompt that is answered once
        await refused(world, "bad_turn", (0, 0, "a"))
        world.open[LEASE.lease_id] = replace(LEASE, expires_at=-1.0)
        await refused(world, "expired_lease", (0, 0, "a"))
        del world.open[LEASE.lease_id]
        await refused(world, "unknown_lease", (0, 0, "a"))
        assert world.called() == []

    scene(tmp_path, body)


def test_a_request_that_is_repeated_meanwhile_is_no_second_question(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        found: list[list[str | None]] = []

        async def ask() -> None:
            found.append(await world.ask((0, 0, "a")))

        with trio.CancelScope() as impatient:  # a session that ends while its request is held
            async with open_nursery() as nursery:
                nursery.start_soon(ask)
                await trio.testing.wait_all_tasks_blocked()
                impatient.cancel()
        async with open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(ask)
        assert found == [["1:"]] * 3
        assert world.called() == ["a"]

    scene(tmp_path, body)


def test_what_was_said_outlives_the_hub(tmp_path: Path) -> None:
    async def before(world: World) -> None:
        assert await world.ask((0, 0, "a"), (1, 0, "b")) == ["1:", "1:"]

    async def after(world: World) -> None:
        assert await world.ask((0, 0, "a")) == ["1:"]
        assert await world.ask((0, 1, "c")) == ["2:"]
        assert world.called() == ["a", "b", "a c"]
        told = world.dialogues.claim(LEASE.lease_id)
        assert [[one.text for one in rollout] for rollout in told] == [["1:", "2:"], ["1:"]]
        del world.open[LEASE.lease_id]
        await world.dialogues.sweep()  # it is a group's now
        assert len((await world.ledger.recover()).dialogues) == 1
        await world.dialogues.forget(LEASE.lease_id)
        assert (await world.ledger.recover()).dialogues == {}

    scene(tmp_path, before)
    scene(tmp_path, after)


def test_what_was_said_in_a_lease_that_ended_is_forgotten(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        await world.ask((0, 0, "a"))
        await world.dialogues.sweep()
        assert len((await world.ledger.recover()).dialogues) == 1
        del world.open[LEASE.lease_id]
        await world.dialogues.sweep()
        assert (await world.ledger.recover()).dialogues == {}

    scene(tmp_path, body)


def test_a_reply_that_fails_ends_the_lease(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        await refused(world, "reply_failed", (0, 0, "a"), (1, 0, "bad"))
        assert world.failed == ["RuntimeError: no such tool"]
        await refused(world, "unknown_lease", (0, 0, "a"))

    scene(tmp_path, body)
