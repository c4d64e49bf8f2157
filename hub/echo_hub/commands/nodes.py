"""`echo-hub nodes`, `ban` and `unban`: the nodes of a run, read from its ledger and acted on.

A ban goes through the ledger whether or not the hub is running. If it is, the command leaves a
request in the ledger, which the hub looks for each second, and waits until it is done; if it is
not, the command locks the ledger as a hub would, and does it itself.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import trio

from echo_hub.commands.status import run_folder
from echo_hub.config import RunConfig, load_config
from echo_hub.ledger.ledger import Ledger, is_served, leave_request, read_nodes, request_is_done
from echo_hub.rollouts.reputation import Reputation
from echo_p2p.errors import IdentityError, LedgerError
from echo_p2p.identity import peer_id_of, public_key_of

_ANSWER_S = 15.0


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
                "trained_groups": row.trained,
                "disputed_groups": row.disputed,
                "accusers": row.accusers,
                "last_seen": row.last_seen,
                "banned": row.record.banned,
            }
        )
    return sorted(found, key=lambda node: -node["accepted"])


def set_ban(root: Path, peer_id: str, why: str | None) -> None:
    """Ban a node for a reason, or unban it if there is none."""
    folder = run_folder(root)
    try:
        node = public_key_of(peer_id)
    except IdentityError as error:
        raise IdentityError(error.message, fix="`echo-hub nodes RUN` lists the ids.") from error
    if is_served(folder.ledger):
        ask_the_hub(folder.ledger, node, why)
    else:
        trio.run(_do_it, folder.ledger, load_config(folder.config), node, why)


def ask_the_hub(path: Path, node: bytes | None, why: str | None = None) -> None:
    """Leave a request to the hub that serves a ledger, and wait until it is done."""
    request_id = leave_request(path, node, why)
    give_up_at = time.monotonic() + _ANSWER_S
    while not request_is_done(path, request_id):
        if time.monotonic() > give_up_at:
            raise LedgerError(
                f"the hub that serves the run has not answered within {_ANSWER_S:g} s.",
                fix="It will be done as soon as it does, or when it is started again.",
            )
        time.sleep(0.1)


async def _do_it(path: Path, config: RunConfig, node: bytes, why: str | None) -> None:
    async with Ledger.open(path, config.run.id) as ledger:
        if why is None:
            await ledger.unban(node)
            await ledger.record_event("node_unbanned", node=peer_id_of(node))
        else:
            standings = (await ledger.recover()).standings
            record = Reputation(config.audit, standings).ban(node, time.time(), why)
            await ledger.ban(node, record)
            await ledger.record_event("node_banned", node=peer_id_of(node), why=why)


def render_nodes(nodes: list[dict[str, Any]]) -> None:
    """Print the nodes as a table."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None)
    table.add_column("node", no_wrap=True)
    counts = ("accepted", "rejected", "trained", "disputed", "valid", "audited", "accused")
    for name in counts:
        table.add_column(name, justify="right", no_wrap=True)
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
        )
    console = Console(soft_wrap=True, width=max(Console().width, 120))
    console.print(table)
    for node in nodes:
        if node["banned"]:
            console.print(f"{node['node']} is banned: {node['banned']}", markup=False)
