"""What a broadcast costs others: the delay of other requests to the hub, and CPU."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

from broadcast_settings import MIB, Setting
from broadcast_trials import scratch
from lab_swarm import START_S, WARM_BYTES, Program, Swarm, open_swarm, start_program
from netlab import Link, open_lab

ASK_EACH_S = 0.02
IDLE_S = 3.0
Record = dict[str, Any]


def measure_latency(setting: Setting, repeats: int) -> Iterator[Record]:
    """How long the hub takes to say what is newest, idle and while a broadcast fills its uplink.

    It is asked by the first node, over the connection by which that node's chunks come.
    """
    with scratch() as root, open_swarm(root, setting.hub, setting.nodes) as swarm:
        idle = _answers(swarm, lambda: time.sleep(IDLE_S))
        busy: list[float] = []
        for _ in range(repeats):
            swarm.prepare(setting.size, setting.chunk_bytes)
            busy += _answers(swarm, lambda: _broadcast(swarm, setting))
    for state, answers_s in (("idle", idle), ("in a broadcast", busy)):
        ranked_ms = sorted(1000 * one for one in answers_s)
        yield {
            "setting": setting.title,
            "hub": state,
            "answers": len(ranked_ms),
            "median ms": round(statistics.median(ranked_ms), 1),
            "p99 ms": round(ranked_ms[int(0.99 * len(ranked_ms))], 1),
            "most ms": round(ranked_ms[-1], 1),
        }


def _broadcast(swarm: Swarm, setting: Setting) -> None:
    swarm.wait(swarm.nodes, swarm.publish(), 60 + 20 * setting.bound_s)


def _answers(swarm: Swarm, act: Callable[[], object]) -> list[float]:
    """Seconds that each answer took while something was done."""
    asker = swarm.nodes[0]
    asker.ask("ask", each_s=ASK_EACH_S)
    act()
    asker.order("stop asking")
    answers: list[float] = asker.next(time.monotonic() + START_S, answers_s=None)["answers_s"]
    return answers


def measure_cpu(mib: int, repeats: int) -> Iterator[Record]:
    """Hub to node to leaf, no link capped, the node on a core of its own: what a GB costs.

    A core has one second of CPU a second, so its inverse is what one core could do.
    """
    rounds = list(_chain(mib * MIB, repeats))
    for number, does in enumerate(("hub: sends", "node: receives and sends", "leaf: receives")):
        each = statistics.median(cpu_s[number] for _, cpu_s in rounds)
        yield {
            "program": does,
            "CPU s/GB": round(each, 2),
            "one core, Mbit/s": round(8000 / each),
            "reached here, Mbit/s": round(8000 / statistics.median(took for took, _ in rounds)),
        }


def _chain(size: int, repeats: int) -> Iterator[tuple[float, list[float]]]:
    """Seconds, and seconds of CPU of hub, node and leaf, for each GB."""
    hosts = {"hub": Link(), "node": Link(), "leaf": Link()}
    with scratch() as root, open_lab(hosts) as lab:

        def start(role: str, core: int, *arguments: object) -> Program:
            before = ("taskset", "-c", str(core))
            return start_program(lab[role], root, role, *arguments, before=before)

        deadline = time.monotonic() + START_S
        hub = start("hub", 1)
        node = start("node", 0, hub.next(deadline, address=None)["address"])
        leaf = start("leaf", 1, node.next(deadline, address=None)["address"])
        leaf.next(deadline, address=None)
        hub.next(deadline, watched_by=None)
        swarm = Swarm(hub, [node, leaf], root, ordered=[leaf])
        swarm.broadcast(WARM_BYTES, MIB, START_S)
        for _ in range(repeats):
            swarm.prepare(size, MIB)
            before = [program.ask("report")["cpu_s"] for program in swarm.programs]
            done = swarm.wait(swarm.nodes, swarm.publish(), START_S)
            after = [program.ask("report")["cpu_s"] for program in swarm.programs]
            used = [(b - a) * 1e9 / size for a, b in zip(before, after, strict=True)]
            yield max(done.node_s) * 1e9 / size, used
