"""Whatever nodes hand in and whatever breaks, nothing poisoned is published, and the run goes on.

The hub, its learner process and the nodes are real; see tests/unit/test_poisoned_updates.py for
what the learner refuses.
"""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from attack_support import Arena, open_arena, small_run
from msgspec.structs import replace
from mutants import CHECKS

from echo_hub.commands.resume import resume_run
from echo_hub.commands.status import read_status
from echo_hub.commands.template import render_config
from echo_hub.config import AuditSection
from echo_hub.guarding import Notice
from echo_hub.ledger.ledger import read_facts
from echo_hub.models.make_addmix3 import VOCABULARY, encode
from echo_hub.rollouts.checks import Code
from echo_p2p.errors import LedgerError
from echo_p2p.wire import Lease, Submission, pack_logprobs, pack_tokens, unpack_tokens

TOKENS = list(VOCABULARY)
GROUPS = 2
"""In one update."""

BLIND = AuditSection(max_margin=1e9, max_logprob_difference=1e9, ban=False)
"""For audits that see nothing."""

ANY_FALL = {"reward_window": 2, "reward_drop": 1e-9, "reward_confidence": 1e-9}


@contextmanager
def run_with(root: Path, **guard: Any) -> Iterator[Arena]:
    config = small_run(
        learner={"groups_per_update": GROUPS, "staleness": 2, "threads": 1},
        guard=guard,
    )
    root.mkdir(exist_ok=True)
    (root / "run.toml").write_text(render_config(config), encoding="utf-8")
    with open_arena(config, root) as arena:
        # as if all of its nodes had stood for long, and chance had chosen none of their groups
        arena.hub.front._assessor.probability = lambda _: 0.0
        yield arena


def with_lies(submission: Submission, lease: Lease) -> Submission:
    """Answers written by hand, the first right and the others wrong, each token claimed to have
    been next to impossible."""
    a, b = "".join(TOKENS[token] for token in unpack_tokens(lease.prompt)).rstrip("=").split("+")
    answers = [f">{int(a) + int(b)}", *[">0"] * (len(submission.rollouts) - 1)]
    rollouts = []
    for answer, rollout in zip(answers, submission.rollouts, strict=True):
        tokens = [*encode(answer), VOCABULARY["<eos>"]]
        logprobs = pack_logprobs([-25.0] * len(tokens))
        rollouts.append(
            replace(rollout, tokens=pack_tokens(tokens), logprobs=logprobs, finish="stop")
        )
    return replace(submission, rollouts=tuple(rollouts))


async def noticed(arena: Arena, kind: str, count: int = 1) -> Notice:
    """The `count`-th notice of a kind, as soon as it is there."""
    while True:
        found = [one for one in arena.hub.loop.guarding.notices if one.kind == kind]
        if len(found) >= count:
            return found[count - 1]
        await arena.hub.loop.changed()


async def at_version(arena: Arena, version: int) -> None:
    while arena.hub.loop.version < version:
        await arena.hub.loop.changed()


async def honest_batch(arena: Arena, version: int) -> list[bytes]:
    leases = []
    for _ in range(GROUPS):
        submission = await arena.ready(arena.honest, version)
        assert (await arena.honest.submit(submission)).accepted
        leases.append(submission.lease_id)
    return leases


async def honest_group(arena: Arena) -> bytes:
    submission = await arena.ready(arena.honest)
    assert (await arena.honest.submit(submission)).accepted
    return submission.lease_id


async def hostile_group(arena: Arena) -> bytes:
    """One that lies in a way that no cheap check sees."""
    (lease,) = await arena.attacker.leases(1)
    (answer,) = await arena.answers([lease])
    assert (await arena.attacker.submit(with_lies(answer, lease))).accepted
    return lease.lease_id


def published(arena: Arena) -> set[int]:
    return {one.version for one in arena.hub.publisher._recent}


async def lies_are_refused(arena: Arena) -> None:
    valid = arena.hub.front._keeper.reputation.valid(arena.honest.identity.public_key, 0.0)
    honest, hostile = await honest_group(arena), await hostile_group(arena)
    refused = await noticed(arena, "refused")
    assert (refused.facts["why"], refused.facts["version"]) == ("mismatch", 1)
    assert refused.facts["false"] == 1  # the refused batch was audited: it was the liar
    assert arena.reason_in_ledger(hostile) == Code.AUDIT_MARGIN
    assert arena.reason_in_ledger(honest) is None  # it waits again
    rules, arena.hub.front._assessor.rules = arena.hub.front._assessor.rules, BLIND
    for number in range(2, 5):
        leases = [honest, await hostile_group(arena)]
        refused = await noticed(arena, "refused", number)
        assert (refused.facts["why"], refused.facts["false"]) == ("mismatch", 0)
        assert {arena.reason_in_ledger(lease) for lease in leases} == {Code.LEARNER_REFUSED}
        assert arena.hub.loop.version == 0
        assert published(arena) == {0}
        if number < 4:
            honest = await honest_group(arena)
    arena.hub.front._assessor.rules = rules
    # the honest node's standing is as good as before, or better
    now = arena.hub.front._keeper.reputation.valid(arena.honest.identity.public_key, 0.0)
    assert now >= valid
    paused = await noticed(arena, "paused")
    assert "3 updates in a row were refused" in paused.sentence  # one more had an explanation
    assert "echo-hub resume" in paused.sentence


def test_a_run_is_paused_for_lies_goes_on_loses_its_learner_and_takes_versions_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One run for all of it, since each costs some seconds to begin; the slow tests show some of
    it alone."""
    with run_with(tmp_path / "run") as arena:
        with pytest.raises(LedgerError, match="not paused"):
            resume_run(tmp_path / "run")
        arena.run(lies_are_refused, arena)
        facts = read_status(tmp_path / "run")
        assert facts["paused"]["version"] == 0
        assert "KL" in facts["paused"]["why"]
        assert facts["updates_refused"] == {"mismatch": 4}

        async def goes_on(arena: Arena) -> None:
            await honest_batch(arena, 0)  # nodes are still served
            await arena.settled()
            assert arena.hub.loop.doing == "paused"
            await trio.to_thread.run_sync(resume_run, tmp_path / "run")
            await noticed(arena, "resumed")
            await at_version(arena, 1)

        arena.run(goes_on, arena)
        assert read_status(tmp_path / "run")["paused"] is None
        assert published(arena) == {0, 1}
        arena.run(the_learner_is_killed, arena)
        assert arena.hub.loop.guarding.pause is None
        it_goes_back(arena, monkeypatch)


async def the_learner_is_killed(arena: Arena) -> None:
    life, config = arena.hub.learner._life, arena.hub.config
    life._pause_s = lambda _: 0.0
    # the one that begins again has an operator's new bounds
    guard = config.guard.model_copy(update=ANY_FALL)
    new = config.model_copy(update={"guard": guard}).model_dump_json()
    life._start = replace(life._start, config=new)
    audited = arena.hub.front.snapshot().audited
    for version, share in ((1, 0.0), (2, 1.0)):  # before an update; and before an audit
        arena.hub.front._assessor.probability = lambda _, share=share: share
        killed = arena.hub.learner.pid
        os.kill(killed, signal.SIGKILL)
        leases = await honest_batch(arena, version)
        await at_version(arena, version + 1)
        assert arena.hub.learner.pid != killed
        assert {arena.reason_in_ledger(lease) for lease in leases} == {None}
    deaths = [one for one in arena.hub.loop.guarding.notices if one.kind == "learner_died"]
    assert [one.facts["version"] for one in deaths] == [1]
    assert arena.hub.front.snapshot().audited == audited + GROUPS


@pytest.mark.slow
def test_without_the_bound_the_same_lies_are_trained_on(tmp_path: Path) -> None:
    with run_with(tmp_path / "run", mismatch_kl=1e300, policy_kl=1e300) as arena:

        async def scene(arena: Arena) -> None:
            leases = [await honest_group(arena), await hostile_group(arena)]
            await at_version(arena, 1)
            assert {arena.reason_in_ledger(lease) for lease in leases} == {None}

        arena.run(scene, arena)


@pytest.mark.slow
def test_a_learner_that_dies_on_a_batch_pauses_the_run_also_after_a_restart(
    tmp_path: Path,
) -> None:
    root = tmp_path / "run"
    with run_with(root, refusals=1) as arena:

        async def dies(arena: Arena) -> None:
            os.kill(arena.hub.learner.pid, signal.SIGKILL)
            leases = await honest_batch(arena, 0)
            await noticed(arena, "paused")
            assert {arena.reason_in_ledger(lease) for lease in leases} == {Code.LEARNER_REFUSED}

        arena.run(dies, arena)
    assert read_facts(root / "ledger.sqlite")["updates_refused"] == {"learner_died": 1}
    with run_with(root) as arena:
        assert arena.hub.loop.guarding.pause is not None
    assert resume_run(root) == 0  # without a hub
    assert read_status(root)["paused"] is None
    with pytest.raises(LedgerError, match="not paused"):
        resume_run(root)


@pytest.mark.slow
def test_after_a_collapse_the_run_goes_on_from_a_good_version_under_a_new_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with run_with(tmp_path / "run", refusals=100, **ANY_FALL) as arena:
        it_goes_back(arena, monkeypatch)
        arena.run(one_more_update, arena)
    numbers = versions_in(tmp_path / "run")
    assert numbers == list(range(numbers[-1] + 1))  # none twice, none left out


def it_goes_back(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    """With these bounds any fall is a collapse, and the rewards of four rollouts soon fall."""
    back = arena.run(until_it_collapses, arena)
    version, to = back.facts["version"], back.facts["to"]
    assert version > to + 1
    assert arena.hub.publisher._recent[-1].version == version
    files = [arena.folder.adapter(v) / "adapter_model.safetensors" for v in (version, to)]
    assert files[0].read_bytes() == files[1].read_bytes()
    # what the versions between sampled is not taken any more, whoever does not know it yet
    assert arena.run(by_a_withdrawn_version, arena) == (Code.WITHDRAWN, None)
    (check,) = (one for one in CHECKS if one.code is Code.WITHDRAWN)
    check.remove(monkeypatch)
    assert arena.run(by_a_withdrawn_version, arena) == (Code.ACCEPTED, Code.WITHDRAWN)
    assert not arena.hub.front._keeper.reputation.bans


async def until_it_collapses(arena: Arena) -> Notice:
    for _ in range(60):
        version = arena.hub.loop.version
        await honest_batch(arena, version)
        while arena.hub.loop.version == version and not rolled_back(arena):
            await arena.hub.loop.changed()
        if rolled_back(arena):
            break
    return await noticed(arena, "rolled_back")


def rolled_back(arena: Arena) -> bool:
    return any(one.kind == "rolled_back" for one in arena.hub.loop.guarding.notices)


async def by_a_withdrawn_version(arena: Arena) -> tuple[str, str | None]:
    """The code of an answer by the version before the newest, and why it was dropped later on."""
    newest = arena.hub.loop.version
    (lease,) = await arena.attacker.leases(1, newest)
    (submission,) = await arena.answers([lease], newest - 1)
    receipt = await arena.attacker.submit(submission)
    if not receipt.accepted:
        return receipt.code, None
    await arena.settled()
    return receipt.code, arena.reason_in_ledger(lease.lease_id)


async def one_more_update(arena: Arena) -> None:
    version = arena.hub.loop.version
    await honest_batch(arena, version)
    await at_version(arena, version + 1)


def versions_in(root: Path) -> list[int]:
    with sqlite3.connect(root / "ledger.sqlite") as ledger:
        return [v for (v,) in ledger.execute("SELECT version FROM updates ORDER BY version")]
