"""How artifacts spread: who counts, from when on, and what stays of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from echo_hub.ledger import swarm as ledger_swarm
from echo_hub.ledger.ledger import Ledger, read_facts, read_nodes
from echo_hub.publish import spread as spread_module
from echo_hub.publish.accusations import MOST_ACCUSED, QUORUM, Accusations
from echo_hub.publish.spread import OPEN_VERSIONS, SHOWN, Spread, Spreads, sentence_of, summary_of

BASE = Spread(artifact=b"base", kind="base", version=0, size=1000, at=50.0)
NODES = [f"node {number}" for number in range(10)]


def adapter(version: int, at: float = 100.0) -> Spread:
    return Spread(artifact=b"v%d" % version, kind="adapter", version=version, size=100, at=at)


def has(spreads: Spreads, artifact: bytes, node: str, now: float, **claims: float) -> bool:
    said = {"from_hub": 50, "from_peers": 50, "greeted_at": 0.0, **claims}
    return spreads.obtained(artifact, node, now=now, **said)  # type: ignore[arg-type]


def known(spreads: Spreads, artifact: bytes) -> Spread:
    (one,) = [each for each in spreads.all() if each.artifact == artifact]
    return one


def test_times_count_from_the_announcement_for_the_nodes_in_session_then() -> None:
    sent = Counter({b"v1": 300})
    spreads = Spreads(sent.__getitem__)
    spreads.announce(adapter(1), NODES)
    for number, node in enumerate(NODES):
        assert not known(spreads, b"v1").everywhere
        assert has(spreads, b"v1", node, 101.0 + number)
        assert known(spreads, b"v1").half_s == (5.0 if number >= 4 else None)
        assert known(spreads, b"v1").most_s == (9.0 if number >= 8 else None)
        assert known(spreads, b"v1").last_s == 1.0 + number
    assert has(spreads, b"v1", "a late one", 900.0)
    one = known(spreads, b"v1")
    assert one.everywhere
    assert (one.expected, one.reached, one.nodes, one.last_s) == (10, 10, 11, 10.0)
    assert (one.hub_bytes, one.from_hub, one.from_peers) == (300, 550, 550)
    assert summary_of([one])["peer_share"] == round(550 / 850, 3)


def test_the_base_counts_from_each_nodes_greeting() -> None:
    spreads = Spreads(Counter().__getitem__)
    spreads.announce(BASE, NODES)
    assert has(spreads, b"base", "a", 1000.0, greeted_at=990.0)
    assert has(spreads, b"base", "b", 2000.0, greeted_at=1996.0)
    one = known(spreads, b"base")
    assert (one.half_s, one.last_s, one.nodes) == (4.0, 10.0, 2)


def test_what_counts_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    spreads = Spreads(Counter().__getitem__)
    spreads.announce(adapter(1), NODES)
    assert has(spreads, b"v1", NODES[0], 101.0)
    before = spreads.all()
    assert not has(spreads, b"v1", NODES[0], 102.0)  # twice
    assert not has(spreads, b"v2", NODES[1], 102.0)  # no such artifact
    monkeypatch.setattr(spread_module, "MOST_NODES", 1)
    assert not has(spreads, b"v1", NODES[1], 102.0)
    assert spreads.all() == before


@given(st.integers(0, 2**44 - 1), st.integers(0, 2**44 - 1), st.floats(0, 4e9), st.floats(0, 4e9))
def test_a_claim_changes_no_more_than_an_honest_one_could(
    from_hub: int, from_peers: int, greeted_at: float, now: float
) -> None:
    spreads = Spreads(Counter().__getitem__)
    spreads.announce(adapter(1), NODES)
    has(spreads, b"v1", NODES[0], now, **{"from_hub": from_hub, "from_peers": from_peers})
    spreads.announce(BASE, NODES)
    has(spreads, b"base", NODES[0], now, greeted_at=greeted_at)
    one, base = known(spreads, b"v1"), known(spreads, b"base")
    assert max(one.from_hub, one.from_peers) <= 2 * one.size
    assert one.last_s is not None
    assert base.last_s is not None
    assert min(one.last_s, base.last_s) >= 0


def test_old_versions_are_closed_with_what_was_known_of_them() -> None:
    sent: Counter[bytes] = Counter()
    spreads = Spreads(sent.__getitem__)
    spreads.announce(BASE, [])
    for version in range(1, 11):
        spreads.announce(adapter(version, at=float(version)), NODES[:1])
        has(spreads, b"v%d" % version, NODES[0], version + 0.5)
        sent[b"v%d" % version] = 100
        closed = [one.version for one in spreads.close_old()]
        assert closed == ([version - OPEN_VERSIONS] if version > OPEN_VERSIONS else [])
        sent.pop(b"v%d" % (version - OPEN_VERSIONS), None)  # the hub has withdrawn it
    assert [one.version for one in spreads.all()] == [*range(1, 7), 0, *range(7, 11)]
    assert {one.hub_bytes for one in spreads.all() if one.kind == "adapter"} == {100}
    summary = summary_of(spreads.all())
    assert (summary["versions"], summary["versions_everywhere"]) == (10, 10)
    assert summary["last_s_median"] == 0.5
    assert summary["latest"] == summary["recent"][-1]
    assert [one["version"] for one in summary["recent"]] == [*range(1, 11)][-SHOWN:]


def test_only_what_changed_is_written() -> None:
    sent = Counter({b"v1": 1})
    spreads = Spreads(sent.__getitem__)
    spreads.announce(adapter(1), NODES)
    assert [one.hub_bytes for one in spreads.take_changed()] == [1]
    assert spreads.take_changed() == []
    sent[b"v1"] = 2
    assert [one.hub_bytes for one in spreads.take_changed()] == [2]
    has(spreads, b"v1", NODES[3], 101.0)
    assert [one.reached for one in spreads.take_changed()] == [1]


def test_a_restarted_hub_goes_on_from_its_ledger(tmp_path: Path) -> None:
    before = replace(adapter(1), expected=2, reached=2, nodes=2, half_s=1.0, most_s=2.0, last_s=2.0)
    before = replace(before, hub_bytes=150, from_hub=120, from_peers=80)

    async def main() -> None:
        for _ in range(2):
            async with Ledger.open(tmp_path / "ledger", "run") as ledger:
                await ledger.put_spreads([BASE, before])
                await ledger.put_spreads([])
        async with Ledger.open(tmp_path / "ledger", "run") as ledger:
            read = (await ledger.recover()).spreads
        assert read == [before, BASE]
        spreads = Spreads(Counter({b"v1": 40}).__getitem__, read)
        spreads.announce(adapter(1, at=500.0), NODES)
        assert has(spreads, b"v1", NODES[0], 501.0)
        after = known(spreads, b"v1")
        assert (after.nodes, after.hub_bytes, after.from_peers) == (3, 190, 130)
        assert replace(after, nodes=2, hub_bytes=150, from_hub=120, from_peers=80) == before

    trio.run(main)
    facts = read_facts(tmp_path / "ledger")
    assert facts["dissemination"] == summary_of([BASE, before])


def test_the_base_is_known_however_many_versions_there_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_swarm, "MOST_PAST", 3)

    async def main() -> None:
        async with Ledger.open(tmp_path / "ledger", "run") as ledger:
            await ledger.put_spreads([BASE, *(adapter(number, at=number) for number in range(9))])
            known = (await ledger.recover()).spreads
        assert known == [adapter(6, at=6), adapter(7, at=7), adapter(8, at=8), BASE]

    trio.run(main)


def test_the_sentence() -> None:
    one = replace(adapter(7), expected=3, reached=3, last_s=0.41, hub_bytes=100, from_peers=200)
    assert sentence_of(summary_of([one])) == (
        "version 7 is on 3 of 3 nodes, versions reach all nodes in 0.41 s (median), "
        "67% of bytes from peers"
    )
    slow = replace(one, last_s=62.4, from_peers=0)
    assert "in 62 s (median), 0% of bytes" in sentence_of(summary_of([slow]))
    assert sentence_of(summary_of([])) == "-"
    assert sentence_of(summary_of([adapter(0)])) == "-"


# --- accusations ----------------------------------------------------------------------------------


def trusted(_: bytes) -> bool:
    return True


def test_one_node_alone_convinces_nobody() -> None:
    accusations = Accusations()
    assert accusations.add(b"accused", b"a")
    for _ in range(100):
        assert not accusations.add(b"accused", b"a")
    assert not accusations.add(b"a", b"a")
    assert not accusations.believed(b"accused", trusted)
    assert accusations.add(b"accused", b"b")
    assert not accusations.believed(b"accused", trusted)
    assert accusations.add(b"accused", b"c")
    assert accusations.believed(b"accused", trusted)
    assert not accusations.believed(b"accused", lambda key: key != b"c")
    assert not accusations.believed(b"another", trusted)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 4)), max_size=300))
def test_liars_shut_out_no_more_nodes_than_they_have_keys(made: list[tuple[int, int]]) -> None:
    accusations = Accusations()
    for accused, liar in made:
        accusations.add(b"n%d" % accused, b"l%d" % liar)
    liars = {liar for _, liar in made}
    believed = [n for n in range(21) if accusations.believed(b"n%d" % n, trusted)]
    assert len(believed) <= len(liars) * MOST_ACCUSED // QUORUM


def test_accusations_are_kept_and_shown(tmp_path: Path) -> None:
    accused = bytes(32)

    async def main() -> None:
        async with Ledger.open(tmp_path / "ledger", "run") as ledger:
            for number in range(3):
                await ledger.add_accusation(accused, b"%d" % number)
            known = (await ledger.recover()).accusations
        assert known == [(accused, b"%d" % number) for number in range(3)]
        assert Accusations(known).believed(accused, trusted)

    trio.run(main)
    assert [(row.key, row.accusers) for row in read_nodes(tmp_path / "ledger")] == [(accused, 3)]
    assert read_facts(tmp_path / "ledger")["nodes_accused"] == 1
