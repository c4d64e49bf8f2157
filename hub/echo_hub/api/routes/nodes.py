"""/api/v1/nodes: who generates, how well, and with which standing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query
from sqlalchemy import Connection

from echo_hub.api.errors import missing
from echo_hub.api.models import NodeDetail, NodeFacts, NodePage, PeerId, Standing
from echo_hub.api.site import TheView
from echo_hub.api.view import View, key_of, keys_in_session, peer_id
from echo_hub.ledger import browse
from echo_hub.ledger.browse import NodeLine
from echo_hub.ledger.decisions import Annotation, read_annotations
from echo_hub.rollouts.reputation import Reputation

router = APIRouter(tags=["nodes"])

Sort = Literal[
    "accepted", "rejected", "valid", "last_seen", "first_seen", "rate", "version", "node"
]
_LIVE = ("rate", "version", "node")
Node = Annotated[PeerId, Path(description="A node's peer id.")]


@router.get("/nodes")
async def get_nodes(
    view: TheView,
    search: Annotated[str, Query(max_length=100, description="Part of a peer id or name.")] = "",
    standing: Standing | None = None,
    sort: Sort = "accepted",
    descending: bool = True,
    offset: Annotated[int, Query(ge=0, le=1_000_000)] = 0,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
) -> NodePage:
    """A page of the run's nodes, those that have just joined included."""
    here = just_joined(view, keys_in_session(view))
    keys, text = None, search.strip().lower()
    judged = bool(text or standing or sort in _LIVE)
    words, known = await view.reader.read(_words_and_keys, here if judged else None)
    if judged:
        keys = [key for key in known if _matches(view, key, text, standing, words)]
    if keys is not None and sort in _LIVE:
        keys.sort(key=lambda key: _live_value(view, key, sort), reverse=descending)
        total, page = len(keys), keys[offset : offset + limit]
        _, lines = await view.reader.read(browse.node_lines, keys=page, limit=limit, also=here)
        lines.sort(key=lambda line: page.index(line.key))
    else:
        total, lines = await view.reader.read(
            browse.node_lines,
            sort=sort,
            descending=descending,
            offset=offset,
            limit=limit,
            keys=keys,
            also=here,
        )
    return NodePage(
        total=total,
        offset=offset,
        nodes=[node_facts(view, line, words.get(line.key)) for line in lines],
    )


def _words_and_keys(
    connection: Connection, also: list[bytes] | None
) -> tuple[Mapping[bytes, Annotation], list[bytes]]:
    """In one look: each costs a wait for the hub's loop. No keys if `also` is None."""
    words = read_annotations(connection)
    return words, [] if also is None else browse.known_keys(connection, also)


@router.get("/nodes/{node}")
async def get_node(view: TheView, node: Node) -> NodeDetail:
    """One node."""
    key = key_of(node)
    here = just_joined(view, {key} & keys_in_session(view))
    _, lines = await view.reader.read(browse.node_lines, keys=[key], also=here)
    if not lines:
        raise missing(f"node {node} in this run")
    trained, disputed = await view.reader.read(browse.trained_on, key)
    words = (await view.reader.read(read_annotations)).get(key, Annotation())
    greeted = view.greeted(node)
    return NodeDetail(
        **node_facts(view, lines[0], words).model_dump(),
        note=words.note,
        addresses=[] if greeted is None else list(greeted.addresses),
        trained_groups=trained,
        disputed_groups=disputed,
        audited_tokens=lines[0].record.evidence.tokens,
    )


def node_facts(view: View, line: NodeLine, words: Annotation | None) -> NodeFacts:
    """A node of the ledger, with what the hub knows of it now."""
    node, now = peer_id(line.key), view.clock()
    live, greeted = view.front.node_facts(line.key), view.greeted(node)
    reputation = Reputation(view.config.audit, [(line.key, line.record)])
    return NodeFacts(
        node=node,
        name="" if words is None else words.name,
        standing=_standing(view, line.key),
        version=None if live is None else live.version,
        rate=0.0 if live is None else live.rate,
        accepted=line.accepted,
        rejected_total=sum(line.rejected.values()),
        rejected=line.rejected,
        valid=reputation.valid(line.key, now),
        audit_probability=reputation.audit_probability(line.key, now),
        suspicion=line.record.evidence.suspicion,
        accusers=line.accusers,
        in_session=node in view.in_session(),
        reachable=None if greeted is None else bool(greeted.addresses),
        software="" if greeted is None else greeted.software,
        engine="" if greeted is None else greeted.engine,
        first_seen=line.first_seen,
        last_seen=line.last_seen,
        why=line.record.banned or view.front.quarantined(line.key) or "",
    )


def just_joined(view: View, keys: Iterable[bytes]) -> list[bytes]:
    """Those whose work the hub has not begun to measure: the ledger may not know them yet."""
    return [key for key in keys if view.front.node_live(key) is None]


def _standing(view: View, key: bytes) -> Standing:
    if view.front.is_banned(key):
        return "banned"
    if view.front.quarantined(key) is not None:
        return "quarantined"
    return "proven" if view.front.has_standing(key) else "newcomer"


def _matches(
    view: View,
    key: bytes,
    search: str,
    standing: Standing | None,
    words: Mapping[bytes, Annotation],
) -> bool:
    if standing is not None and _standing(view, key) != standing:
        return False
    named = words.get(key)
    return (
        not search
        or search in peer_id(key).lower()
        or (named is not None and search in named.name.lower())
    )


def _live_value(view: View, key: bytes, sort: str) -> tuple[float, str]:
    node = peer_id(key)
    if sort == "node":
        return 0.0, node
    version, rate = view.front.node_live(key) or (None, -1.0)
    return (rate if sort == "rate" else -1.0 if version is None else float(version)), node
