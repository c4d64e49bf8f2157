"""A node that keeps leases back while real updates go on: what is too old is never trained on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from attack_support import GROUP, Arena, open_arena, small_run
from msgspec.structs import replace
from mutants import CHECKS

from echo_hub.rollouts.checks import Code
from echo_p2p.wire import Submission

STALENESS = 2
GROUPS = 3
"""In one update."""


@dataclass(frozen=True)
class Race:
    """A run at version 3, of which 0 and 2 were published, and what a node kept of version 0."""

    arena: Arena
    held: list[Submission]
    just_in_time: str
    """What became of an answer by version 0 that was handed in at version 2."""


async def hand_in(arena: Arena, groups: int, version: int) -> None:
    for _ in range(groups):
        assert (await arena.honest.submit(await arena.ready(arena.honest, version))).accepted


async def race(arena: Arena) -> Race:
    held = [await arena.ready(arena.attacker) for _ in range(3)]
    await hand_in(arena, GROUPS, version=0)
    await arena.until(lambda snapshot: snapshot.version == 1)
    await hand_in(arena, GROUPS, version=0)
    await arena.until(lambda snapshot: snapshot.version == 2)
    just_in_time = await arena.outcome(arena.attacker, held.pop())
    await hand_in(arena, GROUPS - 1, version=2)
    await arena.until(lambda snapshot: snapshot.version == 3)
    return Race(arena, held, just_in_time)


@pytest.fixture(scope="module")
def raced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Race]:
    config = small_run(
        learner={"groups_per_update": GROUPS, "staleness": STALENESS, "threads": 1},
        publish={"every": 2},
    )
    with open_arena(config, tmp_path_factory.mktemp("race")) as arena:
        yield arena.run(race, arena)


async def published_honest(arena: Arena) -> Submission:
    """An answer of the attacker's that is as it should be."""
    version = arena.hub.front.snapshot().published
    assert version is not None
    return await arena.ready(arena.attacker, version)


async def is_rejected(arena: Arena, submission: Submission, code: Code) -> None:
    """Rejected for that reason, and the next, honest answer of the same node is accepted."""
    before = await arena.counts()
    assert await arena.outcome(arena.attacker, submission) == code
    honest = await published_honest(arena)
    assert await arena.outcome(arena.attacker, honest) == "accepted"
    assert await arena.counts() - before == Counter({code.value: GROUP, "accepted": GROUP})


def test_an_answer_that_lags_by_s_is_trained_on(raced: Race) -> None:
    assert raced.just_in_time == "accepted"
    lags = raced.arena.hub.front.snapshot().lag_histogram
    assert lags[STALENESS] == 1
    assert max(lags) == STALENESS


def test_an_answer_that_lags_by_more_is_rejected(raced: Race) -> None:
    raced.arena.run(is_rejected, raced.arena, raced.held.pop(), Code.STALE)


def test_without_that_check_it_is_still_not_trained_on(
    raced: Race, monkeypatch: pytest.MonkeyPatch
) -> None:
    (check,) = (one for one in CHECKS if one.code is Code.STALE)
    check.remove(monkeypatch)

    async def scene(arena: Arena, late: Submission) -> None:
        before = await arena.counts()
        assert (await arena.attacker.submit(late)).accepted
        await arena.until(lambda _: arena.reason_in_ledger(late.lease_id) is not None)
        assert arena.reason_in_ledger(late.lease_id) == "stale"
        assert await arena.counts() - before == Counter(stale=GROUP)

    raced.arena.run(scene, raced.arena, raced.held.pop())


def test_a_version_that_was_made_and_not_published_is_rejected(raced: Race) -> None:
    async def scene(arena: Arena) -> None:
        assert arena.hub.loop.version >= 3
        honest = await published_honest(arena)
        await is_rejected(arena, replace(honest, version=3), Code.UNPUBLISHED_VERSION)

    raced.arena.run(scene, raced.arena)


def test_a_version_below_the_window_of_its_lease_is_rejected(raced: Race) -> None:
    async def scene(arena: Arena) -> None:
        honest = await published_honest(arena)
        await is_rejected(arena, replace(honest, version=0), Code.VERSION_OUT_OF_WINDOW)

    raced.arena.run(scene, raced.arena)
