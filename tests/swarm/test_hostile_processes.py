"""Nodes among peers that lie, refuse and dawdle, each a process of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from swarm_lab import MIB, Lab

SIZE = 8 * MIB
CHUNK = 64 * 1024


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    made = Lab(tmp_path)
    made.clear()
    try:
        yield made
    finally:
        made.close()


def test_nodes_complete_among_hostile_peers_and_the_liar_is_reported_and_left_alone(
    lab: Lab,
) -> None:
    first = lab.adapter(SIZE, chunk=CHUNK)
    hostile = {how: lab.hostile(how, how) for how in ("liar", "trickler", "refuser")}
    honest = [lab.node(name) for name in "ab"]
    told = {how: program.next("ready") for how, program in hostile.items()}
    honest_by_id = {node.next("ready")["ready"]: node for node in honest}

    def all_lie_about(envelope: str) -> None:
        for program in hostile.values():
            program.order(lie_about=envelope)
            program.next("lying")

    all_lie_about(first.envelope)
    for node in honest:
        for each in told.values():
            node.order(meet=each["address"])
            node.next("met")
    for node in honest:
        node.order(fetch=first.envelope)
    for node in honest:
        first.check(node)
    second = lab.adapter(SIZE, chunk=CHUNK)
    reports = lab.hub.skipped  # a node reports before it is done
    assert {report["bad_chunk_from"] for report in reports} == {told["liar"]["ready"]}
    warned = [honest_by_id[reporter] for reporter in {report["reporter"] for report in reports}]
    all_lie_about(second.envelope)
    for node in warned:
        node.order(fetch=second.envelope)
    for node in warned:
        second.check(node)
    assert not [said for said in hostile["liar"].finish() if "asked" in said]
