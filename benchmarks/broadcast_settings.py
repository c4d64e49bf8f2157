"""The settings of `broadcast.py`, and the physical bound of each.

The bound is what no way of sending can beat: the hub sends every byte once (F / u_hub), each node
receives every byte (F / d_min), and the N copies leave through all uplinks together
(N F / (u_hub + sum of u_i)). With a fluid in the place of chunks it can be reached: Kumar and Ross,
"Peer-assisted file distribution: the minimum distribution time" (IEEE HotWeb 2006).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "netlab"))

from netlab import Link

MIB = 1 << 20
MB = 1e6
INF = float("inf")


@dataclass(frozen=True)
class Setting:
    """One row: links, delay, and what is asked of us.

    `asked`: the most times the bound it may take. `silent`: so many nodes, the last ones, have set
    an upload limit of 0. `harm`: how many nodes are killed, and how many stopped, when they have
    about a third; only the others count.
    """

    key: str
    title: str
    hub: Link
    nodes: tuple[Link, ...]
    asked: float | None = None
    mib: float = 64
    rtt_s: float = 0.0
    silent: int = 0
    harm: tuple[int, int] = (0, 0)
    chunk_kib: float = 1024

    @property
    def size(self) -> int:
        return round(self.mib * MIB)

    @property
    def chunk_bytes(self) -> int:
        return round(self.chunk_kib * 1024)

    def scaled(self, factor: float) -> Setting:
        """Rates, artifact and chunks so many times as large: the same bound for other CPU work."""

        def link(one: Link) -> Link:
            return replace(one, up=_times(one.up, factor), down=_times(one.down, factor))

        return replace(
            self,
            title=self.title if factor == 1 else f"{self.title}, all x {factor:g}",
            hub=link(self.hub),
            nodes=tuple(link(node) for node in self.nodes),
            mib=self.mib * factor,
            chunk_kib=self.chunk_kib * factor,
        )

    @property
    def survivors(self) -> range:
        """The nodes that nothing is done to."""
        return range(sum(self.harm), len(self.nodes))

    def limits(self, number: int) -> tuple[str, ...]:
        """What a node, by its number from 0, gets for arguments."""
        return ("0",) if number >= len(self.nodes) - self.silent else ()

    @property
    def bound_s(self) -> float:
        """The least time until all survivors have the artifact, sent by all that survive."""
        nodes = [self.nodes[number] for number in self.survivors]
        giving = nodes[: len(nodes) - self.silent]
        up = _rate(self.hub.up)
        together = up + sum(_rate(node.up) for node in giving)
        down = min(_rate(node.down) for node in nodes)
        return max(self.size / up, self.size / down, len(nodes) * self.size / together)


def _times(rate: float | None, factor: float) -> float | None:
    return None if rate is None else rate * factor


def _rate(rate: float | None) -> float:
    return INF if rate is None else rate


def _nodes(count: int, up: float | None = None) -> tuple[Link, ...]:
    return (Link(up=up),) * count


HUB20, HUB5 = Link(up=20 * MB), Link(up=5 * MB)
MIXED = tuple(Link(up=up * MB) for up in (1, 2, 4, 8, 12, 20, 1, 1))

SETTINGS = (
    Setting("a", "8 nodes, hub 20 MB/s, nodes uncapped", HUB20, _nodes(8), 1.10),
    Setting("b", "8 nodes, hub 20, nodes 5 up", HUB20, _nodes(8, 5 * MB), 1.15),
    Setting("c4", "4 nodes, hub 5", HUB5, _nodes(4), 1.25, mib=16),
    Setting("c16", "16 nodes, hub 5", HUB5, _nodes(16), 1.25, mib=16),
    Setting("c32", "32 nodes, hub 5", HUB5, _nodes(32), 1.25, mib=16),
    Setting(
        "d", "8 nodes, hub 20, nodes 1 to 20 up, two give nothing", HUB20, MIXED, 1.25, silent=2
    ),
    Setting("e50", "8 nodes, hub 20, 50 ms round trip", HUB20, _nodes(8), 1.25, rtt_s=0.05),
    Setting("e150", "8 nodes, hub 20, 150 ms round trip", HUB20, _nodes(8), 1.25, rtt_s=0.15),
    Setting("f", "8 nodes, hub 20, 3 killed, 1 stopped", HUB20, _nodes(8), 1.5, harm=(3, 1)),
)

LATENCY = Setting("latency", "4 nodes, hub 5 MB/s", HUB5, _nodes(4), mib=16)


def chosen(rows: Sequence[str]) -> list[Setting]:
    """The settings of these rows; "c" stands for "c4", "c16" and "c32", and so on."""
    return [one for one in SETTINGS if any(one.key in (row, row + one.key[1:]) for row in rows)]
