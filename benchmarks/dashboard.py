"""What does a dashboard cost a hub: how fast does its API answer, and does the ingest slow down?

A hub's front and ledger with so many nodes that ask for leases, so many events a second, and
submissions handed in at a steady rate; beside it the real server, a browser's stream of events in
each of several tabs, and a client that asks all that the dashboard's pages ask. First the API's
times are measured; then the ingest (benchmarks/ingest.py's submissions, as fast as they go), by
turns without and with tabs and client, since the machine's speed changes from minute to minute.

    python benchmarks/dashboard.py [--nodes N] [--seconds S] [--tabs N] [--rounds N] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import trio
from ingest import all_leases, answer, audit, hand_in, run_config

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
from echo_hub.tokens import Tokenizer
from echo_p2p.identity import Identity, peer_id_of
from echo_p2p.wire import LeaseRequest

EVENTS_PER_S = 100
ASKS_PER_S = 40
VERSIONS = 300
PATHS = (
    "/api/v1/overview",
    "/api/v1/nodes?limit=100",
    "/api/v1/nodes?sort=rate&limit=100",
    "/api/v1/nodes?search=9x&limit=100",
    "/api/v1/versions?limit=50",
    "/api/v1/rollouts?limit=25",
    "/api/v1/rollouts/7",
    "/api/v1/learner/metrics",
    "/api/v1/learner/series?name=loss&name=reward_mean&points=300",
    "/api/v1/planner",
    "/api/v1/events/history?limit=100",
    "/metrics",
)


@dataclass(frozen=True)
class Result:
    nodes: int
    tabs: int
    requests: int
    api_p50_ms: float
    api_p99_ms: float
    slowest: dict[str, float]
    """p99 in ms, by path."""
    ingest_alone_per_s: float
    ingest_served_per_s: float
    ingest_ratio: float
    """Median over the rounds of served by alone."""


@dataclass
class Stage:
    front: Front
    ledger: Ledger
    url: str
    nodes: list[Identity]
    work: list[tuple[Identity, bytes]]


@asynccontextmanager
async def stage(folder: Path, nodes: int, submissions: int) -> AsyncIterator[Stage]:
    config = run_config(submissions + nodes).model_copy(
        update={"dashboard": DashboardSection(port=0)}
    )
    base = addmix3_path()
    workers = [Identity.create() for _ in range(8)]
    others = [Identity.create() for _ in range(nodes - len(workers))]
    async with (
        Ledger.open(folder / "ledger.sqlite", "ingest") as ledger,
        open_scorers(config, base) as scorers,
        trio.open_nursery() as nursery,
    ):
        recovered = await ledger.recover()
        await ledger.begin()
        await ledger.record_publication(0, b"manifest")
        front = Front(
            config=config,
            identity=Identity.create(),
            ledger=ledger,
            scorers=scorers,
            tokenizer=Tokenizer.load(base),
            recovered=recovered,
            audit=audit,
        )
        front.advance(0, published=True)
        rng = random.Random(0)
        for version in range(1, VERSIONS):
            metrics = {f"metric_{n}": rng.random() for n in range(40)}
            known = {"reward_mean": rng.random(), "reward_error": 0.01, "loss": rng.random()}
            await ledger.commit_update(version, [], metrics | known)
        for node in others:  # each is known, and has been judged
            await ledger.count_rejected(node.public_key, "stale", 8)
            request = LeaseRequest(run_id="ingest", version=0, groups=1, wait_s=0)
            await front.request_leases(node.public_key, request)
        work = [
            (node, answer(node, lease, rng))
            for node in workers
            for lease in await all_leases(front, node, submissions // len(workers))
        ]
        rng.shuffle(work)
        in_session = {peer_id_of(node.public_key) for node in others}
        view = View(
            config=config,
            folder=RunFolder(folder),
            peer_id=peer_id_of(workers[0].public_key),
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
            yield Stage(front, ledger, url, others, work)
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


@asynccontextmanager
async def _client(url: str, tabs: int, seconds: float) -> AsyncIterator[trio.Process]:
    """A process with the tabs and the asking client, so that its work is not the hub's."""
    command = [sys.executable, __file__, "--client", url]
    command += ["--tabs", str(tabs), "--seconds", str(seconds)]
    process = await trio.lowlevel.open_process(
        command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def measure(nodes: int, seconds: float, tabs: int, rounds: int, folder: Path) -> Result:
    share = 1600
    async with stage(folder, nodes, share * 2 * (rounds + 1)) as here:
        batches = [here.work[i : i + share] for i in range(0, len(here.work), share)]
        await hand_in(here.front, batches.pop(), 128)  # warm
        await hand_in(here.front, batches.pop(), 128)
        async with _client(here.url, tabs, seconds) as process:
            assert process.stdout is not None
            told = b"".join([piece async for piece in process.stdout])
        times: dict[str, list[float]] = json.loads(told.splitlines()[-1])
        alone, served = [], []
        for _ in range(rounds):
            took, _ = await hand_in(here.front, batches.pop(), 128)
            alone.append(share / took)
            async with _client(here.url, tabs, 3600) as process:
                assert process.stdout is not None
                await process.stdout.receive_some()  # its tabs are open
                took, _ = await hand_in(here.front, batches.pop(), 128)
            served.append(share / took)
    every = sorted(one for path in times.values() for one in path)
    return Result(
        nodes=nodes,
        tabs=tabs,
        requests=len(every),
        api_p50_ms=1000 * statistics.median(every),
        api_p99_ms=1000 * every[int(0.99 * (len(every) - 1))],
        slowest={
            path: round(1000 * sorted(found)[int(0.99 * (len(found) - 1))], 1)
            for path, found in times.items()
        },
        ingest_alone_per_s=statistics.median(alone),
        ingest_served_per_s=statistics.median(served),
        ingest_ratio=statistics.median(s / a for s, a in zip(served, alone, strict=True)),
    )


async def client(url: str, tabs: int, seconds: float) -> None:
    """The tabs and the asking client."""
    import httpx

    times: dict[str, list[float]] = {path: [] for path in PATHS}

    async def tab(browser: Any) -> None:
        async with browser.stream("GET", "/api/v1/events", timeout=None) as stream:
            async for _ in stream.aiter_raw():
                pass

    async with httpx.AsyncClient(base_url=url, timeout=30) as browser, trio.open_nursery() as all_:
        for _ in range(tabs):
            all_.start_soon(tab, browser)
        for path in PATHS:  # warm
            (await browser.get(path)).raise_for_status()
        print("ready", flush=True)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for path in PATHS:
                start = time.perf_counter()
                (await browser.get(path)).raise_for_status()
                times[path].append(time.perf_counter() - start)
                await trio.sleep(1 / ASKS_PER_S)
        all_.cancel_scope.cancel()
    print(json.dumps(times))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--tabs", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--client", help="used by the benchmark itself")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.client:
        trio.run(client, args.client, args.tabs, args.seconds)
        return
    with tempfile.TemporaryDirectory() as folder:
        result = trio.run(measure, args.nodes, args.seconds, args.tabs, args.rounds, Path(folder))
    if args.json:
        print(json.dumps(asdict(result)))
        return
    print(f"{result.nodes} nodes, {EVENTS_PER_S} events/s, {result.tabs} tabs")
    print(f"  API                {result.api_p50_ms:.1f} ms p50, {result.api_p99_ms:.1f} ms p99 "
          f"of {result.requests} requests")  # fmt: skip
    for path, p99 in sorted(result.slowest.items(), key=lambda one: -one[1]):
        print(f"    {p99:8.1f} ms p99  {path}")
    print(f"  ingest             {result.ingest_alone_per_s:.0f} /s alone, "
          f"{result.ingest_served_per_s:.0f} /s beside tabs and client: "
          f"{result.ingest_ratio:.3f} of it")  # fmt: skip


if __name__ == "__main__":
    main()
