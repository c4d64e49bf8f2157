"""The exchange between processes that are killed, stopped and started again, and late ones."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from swarm_lab import CHUNK, MIB, Lab, Program, Published, contents, go

SIZE = 8 * MIB


@pytest.fixture(scope="module")
def with_hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    lab = Lab(tmp_path_factory.mktemp("lab"))
    try:
        yield lab
    finally:
        lab.close()


@pytest.fixture
def lab(with_hub: Lab) -> Lab:
    with_hub.clear()
    return with_hub


def fetch_some(node: Program, share: float, published: Published) -> int:
    """Let it fetch that share of the whole; how many bytes it had then."""
    had = 0
    while had < share * published.size:
        had = node.next("done")["done"]
    return had


def test_a_node_killed_twice_fetches_what_it_lacks_and_the_others_do_not_notice(lab: Lab) -> None:
    base = lab.base()
    others = [lab.node("b"), lab.node("c")]
    node = lab.node("a")
    go(base, node, *others)
    had = fetch_some(node, 0.3, base)
    node.kill()
    for other in others:
        base.check(other)
    node = lab.node("a")
    go(base, node)
    had = max(had, fetch_some(node, 0.7, base))
    node.kill()
    node = lab.node("a")
    go(base, node)
    said = base.check(node)
    twice = 4 * CHUNK  # what a slow machine may ask for a second time
    assert said["from_hub"] + said["from_peers"] <= base.size - had + twice


def test_a_stopped_node_holds_nobody_up(lab: Lab) -> None:
    published = lab.adapter(SIZE)
    others = [lab.node("b"), lab.node("c")]
    stopped = lab.node("a")
    go(published, stopped, *others)
    stopped.next("done")
    stopped.signal(signal.SIGSTOP)
    for node in others:
        published.check(node)
    stopped.signal(signal.SIGCONT)
    published.check(stopped)


def test_a_late_joiner_has_base_and_newest_version_mostly_from_nodes(lab: Lab) -> None:
    """It comes in the middle of a run, while the newest version is still on its way to the rest."""
    base = lab.base()
    early = [lab.node(name) for name in "ab"]
    go(base, *early)
    came = [base.check(node) for node in early]
    from_hub = sum(one["from_hub"] for one in came)
    assert base.size <= from_hub <= 1.5 * base.size  # each chunk about once
    late = lab.node("late")
    late.next("ready")
    newest = lab.adapter(SIZE)
    for node in (*early, late):
        node.order(fetch=newest.envelope)
    late.order(fetch=base.envelope)
    got = [late.next("complete") for _ in range(2)]
    assert sum(one["from_hub"] for one in got) < 0.5 * (base.size + newest.size)
    for one in got:
        folder = Path(one["complete"])
        published = base if (folder / "config.json").exists() else newest
        assert contents(folder) == contents(published.source)
    for node in early:
        newest.check(node)


def test_memory_does_not_grow_with_the_artifact(lab: Lab) -> None:
    published = lab.adapter(64 * MIB)
    node = lab.node("a")
    before = node.next("ready")["peak_kib"]
    node.order(fetch=published.envelope)
    assert published.check(node)["peak_kib"] - before < 32 * 1024
