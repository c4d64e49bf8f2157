"""`echo-hub nodes`, `ban` and `unban`: the nodes of a run, read from its ledger and acted on."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from echo_hub.commands.status import run_folder
from echo_hub.config import load_config
from echo_hub.control.actions import Ban, Unban
from echo_hub.control.order import order
from echo_hub.ledger.ledger import read_nodes
from echo_hub.rollouts.reputation import Reputation
from echo_p2p.errors import IdentityError
from echo_p2p.identity import peer_id_of, public_key_of


def list_nodes(root: Path) -> list[dict[str, Any]]:
    """Every node of a run as plain JSON values, the busiest first."""
    folder = run_folder(root)
    rules, now = load_config(folder.config).audit, time.time()
    found = []
    for row in read_nodes(folder.ledger):
        reputation = Reputation(rules, [(row.key, row.record)])
        found.append(
            {
                "node": peer_id_of(row.key),
                "valid": round(reputation.valid(row.key, now), 1),
                "audit_probability": round(reputation.audit_probability(row.key, now), 4),
                "suspicion": round(row.record.evidence.suspicion, 4),
                "accepted": row.accepted,
                "rejected": row.rejected,
                "reasons": row.reasons,
                "trained_groups": row.trained,
                "disputed_groups": row.disputed,
                "accusers": row.accusers,
                "last_seen": row.last_seen,
                "banned": row.record.banned,
            }
        )
    return sorted(found, key=lambda node: -node["accepted"])


def set_ban(root: Path, peer_id: str, why: str | None) -> str:
    """Ban a node for a reason, or unban it if there is none."""
    node = node_key(peer_id)
    return order(root, Unban(node) if why is None else Ban(node, why))


def node_key(peer_id: str) -> bytes:
    """The key of a peer id; IdentityError says where to find one."""
    try:
        return public_key_of(peer_id)
    except IdentityError as error:
        raise IdentityError(error.message, fix="`echo-hub nodes RUN` lists the ids.") from error


def render_nodes(nodes: list[dict[str, Any]]) -> None:
    """Print the nodes as a table."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None)
    table.add_column("node", no_wrap=True)
    counts = ("accepted", "rejected", "trained", "disputed", "valid", "audited", "accused")
    for name in counts:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("rejected most for", no_wrap=True)
    for node in nodes:
        table.add_row(
            node["node"],
            str(node["accepted"]),
            str(node["rejected"]),
            str(node["trained_groups"]),
            str(node["disputed_groups"]),
            f"{node['valid']:.0f}",
            "banned" if node["banned"] else f"{node['audit_probability']:.0%}",
            f"by {node['accusers']}" if node["accusers"] else "-",
            max(node["reasons"], key=node["reasons"].get, default="-"),
        )
    # a peer id must never be cut: it is what the other commands are given
    console = Console(soft_wrap=True, width=max(Console().width, 150))
    console.print(table)
    for node in nodes:
        if node["banned"]:
            console.print(f"{node['node']} is banned: {node['banned']}", markup=False)
