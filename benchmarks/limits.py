"""Are limits kept, and what does a broadcast do to other requests? In the network lab, as root.

`limits`: a program with `--max-upload` (three nodes fetch from it) or `--max-download` (one fetches
from three), while there is more to send than the limit lets through. The bytes on its link, headers
included, in every window of ten seconds, as shares of the limit.

`latency`: how long a hub behind a capped uplink takes to answer "what is newest?" over the
connection by which the asker's chunks come: idle, in a broadcast, and in one with
`network.max_upload` a little under what the uplink does. The queue before the capped link holds a
tenth of a second, as that of a modem.

    python benchmarks/limits.py [--rows limits,latency] [--uplink 4] [--mib 16] [--json]

An uplink that the CPU cannot fill shows the CPU's delays and nothing of the link's.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "netlab"))

from broadcast_settings import MB, MIB
from broadcast_trials import scratch
from lab_swarm import START_S, Swarm, open_swarm
from netlab import Host, Link

from echo_p2p.rates import format_rate, parse_rate

Record = dict[str, Any]
RATES = ("2mbit", "20mbit", "100mbit")
WATCHED_S = 21.0
WINDOW_S = 10.0
STEP_S = 0.2
WARM_UP_S = 1.0  # until the requests that make the demand are there
UNDER = 0.95
ASK_EACH_S = 0.01
IDLE_S = 4.0


def measure_limits() -> Iterator[Record]:
    for rate in RATES:
        for direction in ("up", "down"):
            yield _limit(rate, direction)


def _limit(rate: str, direction: str) -> Record:
    """The shares of one limit that the windows held."""
    up = direction == "up"
    limit = parse_rate(rate)
    assert limit
    size = int(limit * (WATCHED_S + WINDOW_S))
    with (
        scratch() as root,
        open_swarm(
            root,
            Link(),
            [Link()] * (3 if up else 1),
            alone=True,
            hub_limits=[rate] if up else [],
            arguments=lambda _: [] if up else ["unlimited", rate],
        ) as swarm,
    ):
        swarm.prepare(size, MIB // 4)
        swarm.publish()
        host = swarm.hub.host if up else swarm.nodes[0].host
        shares = list(_windows(host, 1 if up else 0, limit))
    return {
        "limit": rate,
        "direction": direction,
        "windows": len(shares),
        "most": round(max(shares), 3),
        "median": round(statistics.median(shares), 3),
        "least": round(min(shares), 3),
    }


def _windows(host: Host, side: int, limit: int) -> Iterator[float]:
    time.sleep(WARM_UP_S)
    began = time.monotonic()
    seen: list[tuple[float, int]] = []
    while time.monotonic() < began + WATCHED_S:
        seen.append((time.monotonic(), host.traffic()[side]))
        time.sleep(STEP_S)
    for number, (at, count) in enumerate(seen):
        later = next((one for one in seen[number:] if one[0] >= at + WINDOW_S), None)
        if later is not None:
            yield (later[1] - count) / (limit * (later[0] - at))


def measure_latency(uplink: float, size: int, repeats: int) -> Iterator[Record]:
    nodes = [Link()] * 4
    for limit in (None, int(UNDER * uplink)):
        limits = [] if limit is None else [format_rate(limit)]
        with (
            scratch() as root,
            open_swarm(root, Link(up=uplink), nodes, hub_limits=limits) as swarm,
        ):
            if limit is None:
                yield _told("idle", _answers(swarm, lambda: time.sleep(IDLE_S)), None)
            rounds = [_busy(swarm, size) for _ in range(repeats)]
            name = "unlimited" if limit is None else f"max_upload {format_rate(limit)}"
            answers = [one for answers, _ in rounds for one in answers]
            took_s = statistics.median(took for _, took in rounds)
            yield _told(f"in a broadcast, {name}", answers, took_s)


def _busy(swarm: Swarm, size: int) -> tuple[list[float], float]:
    """Seconds of each answer during a broadcast, and of the broadcast."""
    took: list[float] = []
    swarm.prepare(size, MIB)
    answers = _answers(swarm, lambda: took.append(_broadcast(swarm)))
    return answers, took[0]


def _told(state: str, answers_s: list[float], took_s: float | None) -> Record:
    ranked_ms = sorted(1000 * one for one in answers_s)
    return {
        "hub": state,
        "answers": len(ranked_ms),
        "median ms": round(statistics.median(ranked_ms), 1),
        "p99 ms": round(ranked_ms[int(0.99 * len(ranked_ms))], 1),
        "broadcast s": None if took_s is None else round(took_s, 2),
    }


def _broadcast(swarm: Swarm) -> float:
    return max(swarm.wait(swarm.nodes, swarm.publish(), START_S).node_s)


def _answers(swarm: Swarm, act: Any) -> list[float]:
    """Seconds that each answer took while something was done."""
    asker = swarm.nodes[0]
    asker.ask("ask", each_s=ASK_EACH_S)
    act()
    asker.order("stop asking")
    answers: list[float] = asker.next(time.monotonic() + START_S, answers_s=None)["answers_s"]
    return answers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default="limits,latency")
    parser.add_argument("--repeats", type=int, default=3, help="broadcasts under `latency`")
    parser.add_argument("--uplink", type=float, default=4.0, help="MB/s, under `latency`")
    parser.add_argument("--mib", type=int, default=16, help="of a broadcast under `latency`")
    parser.add_argument("--json", action="store_true", help="a JSON object a row")
    options = parser.parse_args()
    rows = options.rows.split(",")
    records: list[Iterator[Record]] = []
    if "limits" in rows:
        records.append(measure_limits())
    if "latency" in rows:
        records.append(measure_latency(options.uplink * MB, options.mib * MIB, options.repeats))
    for table in records:
        for record in table:
            if options.json:
                print(json.dumps(record), flush=True)
            else:
                print("  ".join(f"{key}: {value}" for key, value in record.items()), flush=True)


if __name__ == "__main__":
    main()
