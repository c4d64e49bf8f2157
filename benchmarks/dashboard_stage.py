"""The hub of benchmarks/dashboard.py.

Front, ledger, scorers and server are real. Its nodes are keys that ask for leases and are heard of,
its learner is a history of versions, and so many events a second are written to the ledger.
"""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import trio
from ingest import NODES, answers, open_front, run_config

from echo_hub.api.app import make_app
from echo_hub.api.open import open_site
from echo_hub.api.server import serving
from echo_hub.api.view import Reader, View
from echo_hub.config import DashboardSection
from echo_hub.ledger.ledger import Ledger
from echo_hub.loop import LearnerNow
from echo_hub.models import addmix3_path
from echo_hub.paths import RunFolder
from echo_hub.rollouts.front import Front
from echo_hub.scoring.pool import open_scorers
from echo_p2p.identity import Identity, peer_id_of
from echo_p2p.wire import LeaseRequest

EVENTS_PER_S = 100
VERSIONS = 300


@dataclass
class Stage:
    front: Front
    url: str
    work: list[tuple[Identity, bytes]]


@asynccontextmanager
async def stage(folder: Path, nodes: int, submissions: int) -> AsyncIterator[Stage]:
    config = run_config(submissions + nodes).model_copy(
        update={"dashboard": DashboardSection(port=0)}
    )
    others = [Identity.create() for _ in range(nodes - NODES)]
    async with (
        Ledger.open(folder / "ledger.sqlite", "ingest") as ledger,
        open_scorers(config, addmix3_path()) as scorers,
        trio.open_nursery() as nursery,
    ):
        front, rng = await open_front(config, ledger, scorers), random.Random(0)
        for version in range(1, VERSIONS):
            metrics = {f"metric_{n}": rng.random() for n in range(40)}
            known = {"reward_mean": rng.random(), "reward_error": 0.01, "loss": rng.random()}
            await ledger.commit_update(version, [], metrics | known)
        for node in others:  # each is known, and has been judged
            await ledger.count_rejected(node.public_key, "stale", 8)
            request = LeaseRequest(run_id="ingest", version=0, groups=1, wait_s=0)
            await front.request_leases(node.public_key, request)
        work = await answers(front, submissions, rng)
        in_session = {peer_id_of(node.public_key) for node in others}
        view = View(
            config=config,
            folder=RunFolder(folder),
            peer_id=peer_id_of(work[0][0].public_key),
            addresses=tuple,
            front=front,
            learner=lambda: LearnerNow(version=VERSIONS - 1, doing="training", for_s=1.0),
            spreads=list,
            in_session=lambda: in_session,
            greeted=lambda _: None,
            do=None,  # type: ignore[arg-type]  # nobody does anything here
            reader=Reader(folder / "ledger.sqlite"),
            prompts=scorers.prompts,
        )
        async with (
            open_site(view, token=None) as site,
            serving(make_app(site), config.dashboard, folder) as url,
        ):
            nursery.start_soon(_events, ledger)
            nursery.start_soon(_asking, front, others)
            yield Stage(front, url, work)
            nursery.cancel_scope.cancel()
        view.reader.close()


async def _events(ledger: Ledger) -> None:
    number = 0
    while True:
        for _ in range(EVENTS_PER_S // 10):
            number += 1
            await ledger.record_event("group_dropped", group=number, code="stale", why="too old.")
        await trio.sleep(0.1)


async def _asking(front: Front, nodes: list[Identity]) -> None:
    """Every node is heard of within ten seconds, as its requests for leases would have it."""
    while True:
        for start in range(0, len(nodes), max(1, len(nodes) // 100)):
            for node in nodes[start : start + max(1, len(nodes) // 100)]:
                front._tally.seen(node.public_key, 0, time.time())
            await trio.sleep(0.1)
