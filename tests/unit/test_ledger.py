"""The ledger: durable before it returns, once and only once, one hub at a time."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio
from sqlalchemy import select

from echo_hub.control.actions import Ban, ResumeRun
from echo_hub.ledger.decisions import Annotation
from echo_hub.ledger.ledger import Ledger, Recovered, read_facts
from echo_hub.ledger.schema import groups, leases, open_engine, unfinished
from echo_hub.rollouts.evaluation import Evaluated, estimate
from echo_hub.rollouts.leases import OpenLease
from echo_p2p.errors import LedgerError

NODE = b"n" * 32


def lease(number: int, *, split: str = "train", node: bytes = NODE) -> OpenLease:
    return OpenLease(
        lease_id=number.to_bytes(16, "big"),
        node=node,
        split=split,  # type: ignore[arg-type]
        index=number,
        group_size=2,
        seed=2**63 - 1 - number,
        min_version=0,
        max_version=None,
        issued_at=1.0,
        expires_at=2.0,
    )


def with_ledger(path: Path, body: Callable[[Ledger], Awaitable[None]], run_id: str = "run") -> None:
    async def main() -> None:
        async with Ledger.open(path, run_id) as ledger:
            await body(ledger)

    trio.run(main)


def recover(path: Path) -> Recovered:
    out: list[Recovered] = []

    async def body(ledger: Ledger) -> None:
        out.append(await ledger.recover())

    with_ledger(path, body)
    return out[0]


async def add(ledger: Ledger, number: int, *, split: str = "train", version: int = 0) -> int:
    one = lease(number, split=split)
    await ledger.add_leases([one])
    return await ledger.add_group(
        one, version=version, rollouts=2, tokens=6, envelope=b"e%d" % number
    )


def test_a_new_ledger_has_no_version_and_keeps_its_secret(tmp_path: Path) -> None:
    first = recover(tmp_path / "ledger.sqlite")
    assert first.version is None
    assert first.published is None
    assert first.next_index == 0
    assert len(first.secret) == 32
    assert recover(tmp_path / "ledger.sqlite").secret == first.secret


def test_only_the_owner_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"

    def files() -> list[Path]:
        return list(tmp_path.iterdir())

    async def body(ledger: Ledger) -> None:
        await ledger.begin()
        for file in files():
            assert stat.S_IMODE(file.stat().st_mode) == 0o600, file

    with_ledger(path, body)


def test_another_run_another_schema_and_another_file_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    recover(path)
    with pytest.raises(LedgerError, match="belongs to the run 'run'"):
        with_ledger(path, Ledger.begin, run_id="other")
    connection = sqlite3.connect(path)
    for schema in ("2", "999"):
        connection.execute(f"UPDATE meta SET value = '{schema}' WHERE key = 'schema'")
        connection.commit()
        with pytest.raises(LedgerError, match=f"schema {schema}; .* Serve it with the version"):
            recover(path)
    connection.close()
    path.write_bytes(b"this is no database, it is a letter to my aunt" * 100)
    with pytest.raises(LedgerError, match="as a ledger: file is not a database"):
        recover(path)


def test_a_second_hub_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"

    async def body(ledger: Ledger) -> None:
        with pytest.raises(LedgerError, match=f"in use by another hub \\(process {os.getpid()}\\)"):
            async with Ledger.open(path, "run"):
                pass

    with_ledger(path, body)
    recover(path)


def test_recover_says_what_is_waiting(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"

    async def body(ledger: Ledger) -> None:
        await ledger.begin()
        ids = [await add(ledger, number) for number in range(4)]
        await ledger.set_scored(ids[0], [0.0, 1.0])
        await ledger.set_scored(ids[1], [0.5, 1.0])
        await ledger.set_scored(ids[2], [1.0, 1.0])
        await ledger.add_leases([lease(4), lease(5), lease(6)])
        await ledger.release_leases([lease(5), lease(6)])
        again = lease(7)
        await ledger.add_leases([OpenLease(**{**vars(again), "index": 6})])
        await ledger.record_publication(0, b"manifest 0")
        await ledger.commit_update(1, ids[:2], {"loss": 0.5})
        await ledger.count_rejected(NODE, "bad_tokens", 2)
        await ledger.drop_groups([ids[3]], "audit_margin", release=[lease(3)])

    with_ledger(path, body)
    state = recover(path)
    assert state.version == 1
    assert state.published is not None
    assert (state.published.version, state.published.envelope) == (0, b"manifest 0")
    assert state.published_versions == {0}
    assert state.next_index == 7
    assert state.returned == [3, 5]
    assert sorted(open_lease.index for open_lease in state.open_leases) == [4, 6]
    assert [(group.group_id, group.rewards) for group in state.groups] == [(3, [1.0, 1.0])]
    assert state.groups[0].lease == lease(2)
    assert state.groups[0].envelope == b"e2"
    assert state.lags == {0: 2}
    assert sorted(state.verdicts) == [
        (NODE, "accepted", 3, 6),
        (NODE, "audit_margin", 1, 2),
        (NODE, "bad_tokens", 1, 2),
    ]


def test_an_update_is_committed_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"

    async def body(ledger: Ledger) -> None:
        await ledger.begin()
        scored = await add(ledger, 0)
        await ledger.set_scored(scored, [0.0, 1.0])
        unscored = await add(ledger, 1)
        with pytest.raises(LedgerError, match="names 2 groups, of which 1"):
            await ledger.commit_update(1, [scored, unscored], {})
        await ledger.commit_update(1, [scored], {})
        with pytest.raises(LedgerError):
            await ledger.commit_update(2, [scored], {})

    with_ledger(path, body)
    state = recover(path)
    assert state.version == 1
    assert [group.group_id for group in state.groups] == [2]


def test_a_lease_is_answered_once_and_a_bad_write_fails_alone(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    failed: list[int] = []

    async def body(ledger: Ledger) -> None:
        async def answer(number: int) -> None:
            try:
                one = lease(number)
                await ledger.add_group(one, version=0, rollouts=2, tokens=6, envelope=b"x")
            except LedgerError:
                failed.append(number)

        await ledger.add_leases([lease(number) for number in range(20)])
        async with trio.open_nursery() as nursery:
            for number in [*range(20), 7, 7]:
                nursery.start_soon(answer, number)

    with_ledger(path, body)
    assert failed == [7, 7]
    assert sorted(group.lease.index for group in recover(path).groups) == list(range(20))


def test_a_version_is_published_once(tmp_path: Path) -> None:
    async def body(ledger: Ledger) -> None:
        await ledger.begin()
        with pytest.raises(LedgerError, match="never committed"):
            await ledger.record_publication(1, b"one")
        await ledger.record_publication(0, b"zero")
        with pytest.raises(LedgerError, match="published already"):
            await ledger.record_publication(0, b"another zero")

    with_ledger(tmp_path / "ledger.sqlite", body)
    published = recover(tmp_path / "ledger.sqlite").published
    assert published is not None
    assert published.envelope == b"zero"


def test_interrupted_evaluations_end_at_recovery(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    found = Evaluated(0, estimate([1.0]), {"sums": estimate([1.0])})

    async def body(ledger: Ledger) -> None:
        finished = await add(ledger, 0, split="heldout")
        await ledger.set_scored(finished, [1.0])
        await ledger.consume_evaluated([finished])
        await ledger.record_evaluation(found)
        await add(ledger, 1, split="heldout")
        await ledger.add_leases([lease(2, split="heldout")])

    with_ledger(path, body)
    state = recover(path)
    assert state.groups == []
    assert state.open_leases == []
    assert state.evaluated == [found]
    facts = read_facts(path)
    assert facts["heldout_reward"] == {"0": 1.0}
    assert facts["evaluations"] == [found.as_dict()]
    assert state.next_index == 0


def test_closed_leases_and_facts_are_remembered(tmp_path: Path) -> None:
    async def body(ledger: Ledger) -> None:
        await add(ledger, 0)
        await ledger.add_leases([lease(1)])
        await ledger.release_leases([lease(1)])
        answered = await ledger.closed_lease(lease(0).lease_id)
        released = await ledger.closed_lease(lease(1).lease_id)
        assert answered is not None
        assert answered.answered
        assert released is not None
        assert not released.answered
        assert await ledger.closed_lease(b"?" * 16) is None
        await ledger.drop_groups([1], "audit_margin", release=[lease(0)])
        assert await ledger.closed_lease(lease(0).lease_id) == answered
        assert await ledger.remember("base", "aa") == "aa"
        assert await ledger.remember("base", "bb") == "aa"

    with_ledger(tmp_path / "ledger.sqlite", body)


def test_many_readers_at_once_leave_the_writer_alone(tmp_path: Path) -> None:
    async def body(ledger: Ledger) -> None:
        together = threading.Barrier(12)

        def read() -> None:
            with ledger._engine.connect() as connection:
                together.wait(30)
                connection.execute(select(leases)).all()

        await add(ledger, 0)
        async with trio.open_nursery() as nursery:
            for _ in range(together.parties):
                nursery.start_soon(trio.to_thread.run_sync, read)
        await add(ledger, 1)
        assert len((await ledger.recover()).groups) == 2

    with_ledger(tmp_path / "ledger.sqlite", body)


def test_status_reads_beside_a_hub_and_after_it(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    (tmp_path / "empty.sqlite").touch()
    with pytest.raises(LedgerError, match=r"empty\.sqlite is empty\. .*restore a backup"):
        read_facts(tmp_path / "empty.sqlite")
    with pytest.raises(LedgerError, match="no ledger"):
        read_facts(path)

    async def body(ledger: Ledger) -> None:
        await ledger.begin()
        await add(ledger, 0)
        facts = read_facts(path)
        assert facts["version"] == 0
        assert facts["groups_to_score"] == 1
        assert facts["rollouts_accepted"] == 2

    with_ledger(path, body)
    assert read_facts(path)["nodes"] == 1


def test_unfinished_work_is_found_through_the_small_indices(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    recover(path)
    engine = open_engine(path, read_only=True)
    for table, state, index in (
        (leases, "open", "leases_unfinished"),
        (leases, "released", "leases_unfinished"),
        (groups, "scored", "groups_unfinished"),
    ):
        query = select(table).where(unfinished(table, state))
        with engine.connect() as connection:
            plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {query.compile(engine)}").all()
        assert index in str(plan), plan
    engine.dispose()


WRITER = """
import sys, trio
from pathlib import Path
sys.path.insert(0, str(Path(sys.argv[2])))
from test_ledger import lease
from echo_hub.ledger.ledger import Ledger

async def answer(ledger, number):
    one = lease(number)
    await ledger.add_leases([one])
    group = await ledger.add_group(one, version=0, rollouts=2, tokens=6, envelope=b"x" * 4000)
    await ledger.set_scored(group, [0.0, 1.0])
    sys.stdout.write(f"group {number}\\n"); sys.stdout.flush()
    return group

async def main():
    async with Ledger.open(Path(sys.argv[1]), "run") as ledger:
        state = await ledger.recover()
        await ledger.begin()
        version, start = state.version or 0, state.next_index
        waiting = [group.group_id for group in state.groups if group.rewards]
        sys.stdout.write("ready 0\\n"); sys.stdout.flush()
        while True:
            async with trio.open_nursery() as nursery:
                async def one(number):
                    waiting.append(await answer(ledger, number))
                for number in range(start, start + 8):
                    nursery.start_soon(one, number)
            start += 8
            version += 1
            await ledger.commit_update(version, waiting, {})
            waiting = []
            sys.stdout.write(f"update {version}\\n"); sys.stdout.flush()

trio.run(main)
"""


def test_kill_at_any_moment_loses_nothing_acknowledged(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    acknowledged: set[int] = set()
    version = 0
    for seed in range(5):
        child = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), str(Path(__file__).parent)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert child.stdout is not None
        for _ in range(random.Random(seed).randint(20, 120)):
            kind, number = child.stdout.readline().split()
            if kind == "group":
                acknowledged.add(int(number))
            elif kind == "update":
                version = int(number)
        child.send_signal(signal.SIGKILL)
        for line in child.stdout:  # said before it died, so it holds
            kind, _, number = line.strip().partition(" ")
            if kind == "group" and line.endswith("\n"):
                acknowledged.add(int(number))
            elif kind == "update" and line.endswith("\n"):
                version = int(number)
        child.wait()
        child.stdout.close()

    state = recover(path)
    assert state.version is not None
    assert state.version >= version
    engine = open_engine(path, read_only=True)
    with engine.connect() as connection:
        kept = connection.execute(
            select(groups.c.lease_id, groups.c.state, groups.c.update_no)
        ).all()
    engine.dispose()
    indices = [int.from_bytes(row.lease_id, "big") for row in kept]
    assert len(indices) == len(set(indices))
    assert acknowledged <= set(indices)
    consumed = [row.update_no for row in kept if row.state == "consumed"]
    # every group is consumed by the updates that are there, or waits: nothing is in between
    assert set(consumed) == set(range(1, state.version + 1))
    assert sum(state.lags.values()) == len(consumed)
    assert len(consumed) + len(state.groups) == len(kept)


def test_the_ledger_of_an_earlier_version_gets_what_is_new(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"

    async def use() -> None:
        async with Ledger.open(path, "run") as ledger:
            await ledger.decisions.annotate(b"k" * 32, Annotation("one", ""))
            await ledger.decisions.pin(3, pinned=True)
            assert [one.action for one in await ledger.decisions.open_requests()] == wanted

    wanted: list[object] = []
    trio.run(use)
    with sqlite3.connect(path) as connection:  # as the version before made it
        for table in ("quarantines", "annotations", "pins", "audits", "vouchers"):
            connection.execute(f"DROP TABLE {table}")
        connection.execute("DROP INDEX events_by_kind")
        for table, column in (
            ("requests", "request"),
            ("requests", "outcome"),
            ("groups", "tokens"),
        ):
            connection.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
        connection.execute("INSERT INTO requests (node, why, done) VALUES (NULL, NULL, 0)")
        connection.execute("INSERT INTO requests (node, why, done) VALUES (x'6b', 'why', 0)")
        connection.execute("UPDATE meta SET value = '5' WHERE key = 'schema'")
    connection.close()
    with pytest.raises(LedgerError, match="schema 5"):
        read_facts(path)
    wanted = [ResumeRun(), Ban(b"k", "why")]
    trio.run(use)
    read_facts(path)
    trio.run(use)  # once is enough
