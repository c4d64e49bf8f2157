"""`echo-hub nodes RUN PEER_ID`: one node in full, and why its rollouts were rejected."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from echo_hub.commands.nodes import list_nodes, node_key
from echo_hub.commands.status import moment, run_folder
from echo_hub.ledger import browse
from echo_hub.ledger.browse import Wanted
from echo_hub.ledger.decisions import Annotation, read_annotations, read_quarantines
from echo_hub.ledger.ledger import beside
from echo_hub.ledger.trace import SPOILT
from echo_hub.rollouts.checks import Code
from echo_hub.rollouts.reputation import FAULTS
from echo_p2p.errors import IdentityError

REFUSED = 10
"""Groups of the node that are told of, the newest first."""
_MANY = 1_000_000


def node_in_full(root: Path, peer_id: str) -> dict[str, Any]:
    """What the ledger knows of a node, as JSON values; `refused` are its last rejected groups.

    Raises:
        IdentityError: it is no peer id, or not that of a node of this run.
    """
    key = node_key(peer_id)
    found = [one for one in list_nodes(root) if one["node"] == peer_id]
    if not found:
        raise IdentityError(
            f"this run knows no node {peer_id}.", fix="`echo-hub nodes RUN` lists the ids."
        )
    with beside(run_folder(root).ledger) as connection:
        words = read_annotations(connection).get(key, Annotation())
        return {
            **found[0],
            "quarantined": read_quarantines(connection).get(key),
            "name": words.name,
            "note": words.note,
            "refused": _refused(connection, key, peer_id),
        }


def _refused(connection: Connection, key: bytes, peer_id: str) -> list[dict[str, Any]]:
    """At the door, and later."""
    at_the_door = [
        {"trace": event.detail["lease"], "at": event.at, "code": event.detail["code"]}
        for event in browse.event_lines(connection, limit=_MANY, kinds=[SPOILT])
        if event.detail.get("node") == peer_id
    ]
    dropped, _, _ = browse.group_lines(
        connection, Wanted(node=key, state="dropped"), before=None, limit=REFUSED, look_at=_MANY
    )
    later = [
        {"trace": group.lease_id.hex(), "at": group.received_at, "code": group.reason or ""}
        for group in dropped
    ]
    return sorted(at_the_door[:REFUSED] + later, key=lambda one: -float(one["at"]))[:REFUSED]


def render_node(node: dict[str, Any]) -> None:
    """Print the node for people."""
    from rich.console import Console
    from rich.table import Table

    console, now = Console(soft_wrap=True), time.time()
    facts = Table(show_header=False, box=None)
    for name, value in _facts(node, now):
        facts.add_row(name, value)
    console.print(facts)
    if node["reasons"]:
        console.print("\nrejected rollouts, by reason:")
    for code, count in sorted(node["reasons"].items(), key=lambda one: -one[1]):
        line = f"  {count:>7}  {code}: {_sentence(code)}"
        console.print(line, markup=False, highlight=False)
        if code in FAULTS:
            console.print(f"{'':11}No honest node is rejected for this.", style="red")
    if node["refused"]:
        console.print("\nits last rejected groups; `echo-hub trace RUN ID` tells all of one:")
    for one in node["refused"]:
        line = f"  {one['trace']}  {moment(one['at'], now)}  {one['code']}"
        console.print(line, markup=False, highlight=False)


def _facts(node: dict[str, Any], now: float) -> list[tuple[str, str]]:
    rows = [("node", node["node"])]
    rows += [(key, node[key]) for key in ("name", "note") if node[key]]
    rows += [
        ("rollouts accepted", str(node["accepted"])),
        ("rollouts rejected", str(node["rejected"])),
        ("groups trained on", f"{node['trained_groups']} ({node['disputed_groups']} disputed)"),
        ("valid groups in a row", f"{node['valid']:.0f}"),
        ("share audited", f"{node['audit_probability']:.0%}"),
        ("suspicion", f"{node['suspicion']:.2f} (1 bans it)"),
        ("accused by", str(node["accusers"])),
    ]
    if node["last_seen"] is not None:
        rows.append(("last seen", moment(node["last_seen"], now)))
    if node["quarantined"] is not None:
        rows.append(("in quarantine", node["quarantined"]))
    if node["banned"]:
        rows.append(("banned", node["banned"]))
    return rows


def _sentence(code: str) -> str:
    return Code(code).sentence if code in list(Code) else "a task's or an older hub's code."
