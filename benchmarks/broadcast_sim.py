"""How close the planner comes to the physical bound, simulated.

Drives the program's own planner, scatter and upload queues (see `sim_swarm`).

    python benchmarks/broadcast_sim.py             the settings of the lab, seconds each
    python benchmarks/broadcast_sim.py --crowd 1000    so many nodes on residential links
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from sim_swarm import Link, Site, Swarm, bound

MB, MIB = 1e6, 1 << 20
MIX = [  # million subscribers, median Mbit/s up, median Mbit/s down
    (32.2, 20.4, 226.1),  # Comcast
    (30.4, 11.8, 225.3),  # Charter
    (15.4, 142.8, 187.1),  # AT&T
    (7.5, 104.9, 183.2),  # Verizon
    (5.6, 10.7, 212.3),  # Cox
    (4.3, 29.8, 190.8),  # Altice
]
"""The largest providers in the US. Rates: Ookla's medians, fourth quarter of 2022 (as told by
Fierce Network, "Comcast snags speed crown"). Subscribers: rough figures of ours, as weights."""
SPREAD = 0.5  # of the lines of one provider: standard deviation of the logarithm. Assumed.
HOME_RTT_S = 0.014  # Ookla's median latency of fixed lines in the US, end of 2022
FREE = 125 * MB  # "uncapped": a gigabit


@dataclass
class Row:
    """One setting."""

    name: str
    size: int
    hub: Link
    nodes: list[Link]
    act: Callable[[Swarm], None] = lambda swarm: None


def settings() -> list[Row]:
    """Those of `benchmarks/broadcast.py`, and some more."""
    big, small = 64 * MIB, 16 * MIB

    def free(n: int, rtt: float = 0.0005, up: float = FREE) -> list[Link]:
        return [Link(up, FREE, rtt) for _ in range(n)]

    def hub(up: float, rtt: float = 0.0005) -> Link:
        return Link(up, FREE, rtt)

    mixed = [Link(u * MB, FREE, 0.0005) for u in (0, 0, 1, 2, 5, 10, 15, 20)]
    return [
        Row("8 nodes, hub 20 MB/s", big, hub(20 * MB), free(8)),
        Row("8 nodes, hub 20, nodes 5 up", big, hub(20 * MB), free(8, up=5 * MB)),
        Row("4 nodes, hub 5, 16 MiB", small, hub(5 * MB), free(4)),
        Row("16 nodes, hub 5, 16 MiB", small, hub(5 * MB), free(16)),
        Row("32 nodes, hub 5, 16 MiB", small, hub(5 * MB), free(32)),
        Row("uplinks 0, 0, 1 to 20", big, hub(20 * MB), mixed),
        Row("16 nodes, hub 20, 10 up, 16 MiB", small, hub(20 * MB), free(16, up=10 * MB)),
        Row("8 nodes, hub 5, 50 ms", small, hub(5 * MB, 0.025), free(8, 0.025)),
        Row("8 nodes, hub 5, 150 ms", small, hub(5 * MB, 0.075), free(8, 0.075)),
        Row("8 nodes, 50 ms", big, hub(20 * MB, 0.025), free(8, 0.025)),
        Row("8 nodes, 150 ms", big, hub(20 * MB, 0.075), free(8, 0.075)),
        Row("8 nodes, 5 up, 150 ms", big, hub(20 * MB, 0.075), free(8, 0.075, 5 * MB)),
        Row("8 nodes, 3 killed, 1 stopped", big, hub(20 * MB), free(8), _kill),
        Row("8 nodes, 8 down, 5 up", big, hub(20 * MB), [Link(5 * MB, 8 * MB, 0.0005)] * 8),
        Row("8 nodes, 100 up, one .1", big, hub(20 * MB), [*free(7), Link(1e5, FREE, 0.0005)]),
        Row("8 nodes, 2 late", big, hub(20 * MB), free(8), _late),
        Row("1 node, 150 ms", big, hub(20 * MB, 0.075), free(1, 0.075)),
    ]


def _kill(swarm: Swarm) -> None:
    nodes = list(swarm.nodes.values())

    def act() -> None:
        for node in nodes[:3]:
            swarm.leave(node)
        swarm.stop(nodes[3])

    swarm.at(1.5, act)


def _late(swarm: Swarm) -> None:
    def act() -> None:
        for _ in range(2):
            node = swarm.join(Link(FREE, FREE, 0.0005))
            swarm.at(swarm.now + 0.3, swarm.introduce, node)

    swarm.at(1.5, act)


def run(row: Row, chunk: int, seed: int = 0) -> tuple[Swarm, float]:
    """Simulate one setting from a swarm that is connected already; seconds to the last node."""
    swarm = Swarm(seed=seed, count=-(-row.size // chunk), chunk=chunk, hub=row.hub)
    for link in row.nodes:
        swarm.join(link)
    for node in list(swarm.nodes.values()):
        swarm.introduce(node)
    row.act(swarm)
    swarm.run(until=600.0)
    return swarm, last(list(swarm.nodes.values()))


def residential(rng: random.Random) -> Link:
    """A home's link, drawn from `MIX`."""
    ((_, up, down),) = rng.choices(MIX, [kind[0] for kind in MIX])
    spread = math.exp(SPREAD * rng.gauss(0, 1))
    return Link(up * 1e6 / 8 * spread, down * 1e6 / 8 * spread, HOME_RTT_S)


def crowd(options: argparse.Namespace) -> None:
    """Many nodes on residential links, some leaving and others joining all the time."""
    rng = random.Random(options.seed)
    size = options.mib * MIB
    chunk = options.chunk or adaptive(size)
    hub = Link(options.hub * MB, options.hub * MB, 0.01)
    swarm = Swarm(seed=options.seed, count=-(-size // chunk), chunk=chunk, hub=hub)
    links = [residential(rng) for _ in range(options.crowd)]
    for link in links:
        swarm.join(link)
    first = list(swarm.nodes.values())
    for node in first:
        swarm.introduce(node)

    def churn() -> None:
        node = rng.choice([node for node in swarm.nodes.values() if not node.gone])
        swarm.leave(node)
        swarm.at(swarm.now + 0.3, swarm.introduce, swarm.join(residential(rng)))
        swarm.at(swarm.now + rng.expovariate(rate), churn)

    rate = options.churn / 100 / 60 * len(links)
    if rate > 0:
        swarm.at(rng.expovariate(rate), churn)
    began = time.process_time()
    swarm.run(until=3600.0)
    least = bound(size, hub, links)
    times = sorted(n.done_at for n in first if n.done_at is not None)
    stayed = sum(not n.gone for n in first)
    copies, kilobytes = swarm.hub.sent_bytes / size, swarm.hub.sent_bytes / len(links) / 1e3
    print(
        f"{len(links)} nodes, {options.mib} MiB in chunks of {chunk >> 10} KiB, "
        f"hub {options.hub:g} MB/s, churn {options.churn:g} % a minute\n"
        f"bound {least:.2f} s; half of the nodes {times[len(times) // 2]:.2f} s, "
        f"99 % {times[int(0.99 * len(times))]:.2f} s, the last {times[-1]:.2f} s "
        f"({times[-1] / least:.2f} of the bound); {len(times)} of {stayed} that stayed\n"
        f"hub {copies:.2f} copies, {kilobytes:.1f} kB a node; "
        f"sent in vain {swarm.wasted / swarm.count / len(links):.3f} of the chunks\n"
        f"{swarm.events} events, {swarm.plans} plans, {time.process_time() - began:.0f} s of CPU",
        flush=True,
    )


def adaptive(size: int) -> int:
    """The chunk size that the publisher would choose."""
    return max(64 << 10, min(MIB, size // 128))


def last(nodes: list[Site]) -> float:
    """When the last of those that could finish had it."""
    times = [n.done_at for n in nodes if not n.gone and not n.stopped]
    return max(float("inf") if at is None else at for at in times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chunk", type=int, default=0, help="bytes; 0: by size")
    parser.add_argument("--only", default="")
    parser.add_argument("--crowd", type=int, default=0, help="so many nodes on residential links")
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--hub", type=float, default=20.0, help="MB/s")
    parser.add_argument("--churn", type=float, default=1.0, help="percent of the nodes a minute")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.crowd:
        crowd(options)
        return
    print("| setting | bound s | ours s | ratio | hub copies | wasted | plans | CPU s |")
    print("|---|---|---|---|---|---|---|---|")
    for row in settings():
        if options.only not in row.name:
            continue
        began = time.process_time()
        chunk = options.chunk or adaptive(row.size)
        swarm, took = run(row, chunk)
        least = bound(row.size, row.hub, row.nodes)
        copies = swarm.hub.sent_bytes / row.size
        print(
            f"| {row.name} | {least:.2f} | {took:.2f} | {took / least:.2f} | {copies:.2f} "
            f"| {swarm.wasted / swarm.count:.2f} | {swarm.plans} "
            f"| {time.process_time() - began:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
