"""/api/v1/public: what everybody may know. No address or key of a node is in it."""

from __future__ import annotations

import hmac
from pathlib import Path

import trio
from fastapi import APIRouter
from sqlalchemy import Connection, select

from echo_hub.api import models
from echo_hub.api.errors import missing
from echo_hub.api.site import Here
from echo_hub.ledger.credit import Leader, leaders
from echo_hub.ledger.decisions import read_annotations
from echo_hub.ledger.schema import meta

router = APIRouter(tags=["public"])

LEADERS = 100
JOIN = "echo-node join --bootstrap bootstrap_peers.toml"


@router.get("/public")
async def get_public(site: Here) -> models.PublicProgress:
    """Progress, leader board, how to join."""
    view = site.view
    if not view.config.dashboard.public:
        raise missing("public page", "Set dashboard.public = true in run.toml.")
    snapshot = view.snapshot()
    found, named, secret = await view.reader.read(_leaders)
    total = max(1, snapshot.rollouts_accepted)
    return models.PublicProgress(
        run=view.config.run.id,
        task=view.config.shown_tasks,
        base=Path(view.config.base.path).name,
        version=snapshot.version,
        updates=view.config.run.updates,
        reward=await site.overview.reward(),
        nodes_in_session=len(view.in_session()),
        rollouts_accepted=snapshot.rollouts_accepted,
        leaders=[
            models.PublicNode(
                name=leader.name or named.get(leader.key) or pseudonym(secret, leader.key),
                machines=leader.machines,
                tokens=leader.given.tokens,
                accepted=leader.given.rollouts,
                share=min(1.0, leader.given.rollouts / total),
            )
            for leader in found
        ],
        join=JOIN,
        bootstrap=await trio.to_thread.run_sync(_bootstrap, view.folder.bootstrap),
    )


def pseudonym(secret: bytes, key: bytes) -> str:
    """A name that stays the same in this run and says nothing of the key."""
    digest = hmac.new(secret, b"echo-p2p public name\0" + key, "sha256").hexdigest()
    return f"volunteer {digest[:6]}"


def _leaders(connection: Connection) -> tuple[list[Leader], dict[bytes, str], bytes]:
    """Who gave most; what the operator calls machines; the run's secret."""
    secret = connection.scalar(select(meta.c.value).where(meta.c.key == "secret"))
    named = {node: words.name for node, words in read_annotations(connection).items() if words.name}
    return leaders(connection, LEADERS), named, bytes.fromhex(secret or "")


def _bootstrap(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:  # the operator keeps it elsewhere
        return ""
