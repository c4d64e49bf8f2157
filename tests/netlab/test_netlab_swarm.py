"""Our swarm between hosts that the lab keeps apart."""

from __future__ import annotations

from pathlib import Path

import pytest
from lab_swarm import MIB, START_S, open_swarm
from netlab import Link, why_not

pytestmark = pytest.mark.skipif(why_not() is not None, reason=f"no network lab: {why_not()}")


def test_nodes_that_cannot_be_dialled_give_over_connections_they_opened(tmp_path: Path) -> None:
    """Two nodes behind firewalls meet through a third, which gets chunks from them."""
    nodes = [Link(), Link(firewalled=True), Link(firewalled=True)]
    with open_swarm(tmp_path, Link(up=1e6), nodes, warm_bytes=MIB // 16) as swarm:
        done = swarm.broadcast(2 * MIB, MIB // 16, START_S)
        sent = [node.ask("report")["sent"] for node in swarm.nodes]
    assert sum(sent[1:]) > MIB // 8  # more than they could have of the version before
    assert done.total("from_peers") > 0
