"""What does a dashboard cost a hub, and what does it feel like?

A hub's front and ledger with so many nodes that ask for leases, and so many events a second
(dashboard_stage.py). Beside it the real server, and what is measured, one after the other:

- its API: a browser's stream of events in each of several tabs, and a client that asks all that the
  dashboard's pages ask, 40 times a second;
- its pages, in a real browser (dashboard_page.py);
- the ingest of benchmarks/ingest.py, as fast as it goes, by turns without and with
  the tabs and a client that turns to another page twice a second, since the machine's speed changes
  from minute to minute.

    python benchmarks/dashboard.py [--nodes N] [--seconds S] [--tabs N] [--rounds N] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
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
from dashboard_stage import EVENTS_PER_S, stage
from ingest import hand_in

HERE = Path(__file__).parent
SHARE = 1600
ASKS_PER_S, TURNS_PER_S = 40.0, 2.0
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
    page: dict[str, Any]
    """What dashboard_page.py found; empty without a browser."""
    ingest_alone_per_s: float
    ingest_served_per_s: float
    ingest_ratio: float
    """Median over the rounds of served by alone."""


@asynccontextmanager
async def _beside(script: str, *arguments: str) -> AsyncIterator[trio.Process]:
    """Another process, so that its work is not the hub's."""
    process = await trio.lowlevel.open_process(
        [sys.executable, str(HERE / script), *arguments],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


def _client(url: str, tabs: int, seconds: float, asks_per_s: float) -> Any:
    """The tabs and the asking client."""
    options = ["--client", url, "--tabs", str(tabs), "--seconds", str(seconds)]
    return _beside("dashboard.py", *options, "--asks", str(asks_per_s))


async def _said(process: trio.Process) -> Any:
    """The JSON of a process's last line."""
    assert process.stdout is not None
    told = b"".join([piece async for piece in process.stdout])
    return json.loads(told.splitlines()[-1])


async def measure(asked: argparse.Namespace, folder: Path) -> Result:
    async with stage(folder, asked.nodes, SHARE * (2 * asked.rounds + 2)) as here:
        batches = [here.work[i : i + SHARE] for i in range(0, len(here.work), SHARE)]
        for _ in range(2):  # warm
            await hand_in(here.front, batches.pop(), 128)
        async with _client(here.url, asked.tabs, asked.seconds, ASKS_PER_S) as process:
            times: dict[str, list[float]] = await _said(process)
        page: dict[str, Any] = {}
        if shutil.which("chromium"):
            async with _beside("dashboard_page.py", here.url) as process:
                page = await _said(process)
        alone, served = [], []
        for _ in range(asked.rounds):
            took, _ = await hand_in(here.front, batches.pop(), 128)
            alone.append(SHARE / took)
            async with _client(here.url, asked.tabs, 3600, TURNS_PER_S) as process:
                assert process.stdout is not None
                await process.stdout.receive_some()  # its tabs are open
                took, _ = await hand_in(here.front, batches.pop(), 128)
            served.append(SHARE / took)
    every = sorted(one for path in times.values() for one in path)
    return Result(
        nodes=asked.nodes,
        tabs=asked.tabs,
        requests=len(every),
        api_p50_ms=1000 * statistics.median(every),
        api_p99_ms=1000 * every[int(0.99 * (len(every) - 1))],
        slowest={
            path: round(1000 * sorted(found)[int(0.99 * (len(found) - 1))], 1)
            for path, found in times.items()
        },
        page=page,
        ingest_alone_per_s=statistics.median(alone),
        ingest_served_per_s=statistics.median(served),
        ingest_ratio=statistics.median(s / a for s, a in zip(served, alone, strict=True)),
    )


async def client(url: str, tabs: int, seconds: float, asks_per_s: float) -> None:
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
                await trio.sleep(1 / asks_per_s)
        all_.cancel_scope.cancel()
    print(json.dumps(times))


def show(result: Result) -> None:
    print(f"{result.nodes} nodes, {EVENTS_PER_S} events/s, {result.tabs} tabs")
    print(f"  API                {result.api_p50_ms:.1f} ms p50, {result.api_p99_ms:.1f} ms p99 "
          f"of {result.requests} requests")  # fmt: skip
    for path, p99 in sorted(result.slowest.items(), key=lambda one: -one[1]):
        print(f"    {p99:8.1f} ms p99  {path}")
    if page := result.page:
        print(f"  first paint        {page['first_paint_ms']:.0f} ms; the overview is drawn after "
              f"{page['overview_ms']:.0f} ms")  # fmt: skip
        print(f"  weight             {page['first_bytes'] / 1000:.0f} kB as sent; "
              f"{page['all_bytes'] / 1000:.0f} kB once every page was open")  # fmt: skip
        for place, cost in page["following"].items():
            print(f"  {place:<18} {cost['busy']:.1%} of a core to follow, {cost['long_tasks']} "
                  f"tasks over 50 ms, longest {cost['longest_ms']:.0f} ms")  # fmt: skip
    print(f"  ingest             {result.ingest_alone_per_s:.0f} /s alone, "
          f"{result.ingest_served_per_s:.0f} /s beside the tabs: "
          f"{result.ingest_ratio:.3f} of it")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--tabs", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--client", help="used by the benchmark itself")
    parser.add_argument("--asks", type=float, default=ASKS_PER_S, help="a second, of the client")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.client:
        trio.run(client, args.client, args.tabs, args.seconds, args.asks)
        return
    with tempfile.TemporaryDirectory() as folder:
        result = trio.run(measure, args, Path(folder))
    if args.json:
        print(json.dumps(asdict(result)))
    else:
        show(result)


if __name__ == "__main__":
    main()
