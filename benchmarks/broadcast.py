"""How long until the last node has a new policy? Ours and its rivals, and the physical bound.

In a lab of network namespaces (`tests/netlab`; Linux, root) a hub publishes an artifact to nodes
whose links are capped. Time runs from the announcement until the last node has the artifact
verified on its disk. All processes are real ones, and as in a run they are connected beforehand.

    python benchmarks/broadcast.py [--rows a,b,...] [--repeats 3] [--json | --markdown]
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from pathlib import Path

from broadcast_lab import Link, Setting, measure
from rich.console import Console
from rich.table import Table

MB = 1e6
FOLDER = Path("/dev/shm")  # what is measured is the network, not this machine's disk

SETTINGS = [
    Setting("a", "8 nodes, hub 20 MB/s, nodes uncapped", Link(up=20 * MB), (Link(),) * 8, 1.10),
    Setting("b", "8 nodes, hub 20, nodes 5 up", Link(up=20 * MB), (Link(up=5 * MB),) * 8, 1.15),
]


def show(records: list[dict[str, object]], console: Console) -> None:
    table = Table()
    columns = ["row", "setting", "system", "seconds", "bound_s", "ratio", "asked"]
    columns += ["hub_copies", "from_peers", "cpu_s", "peak_mib"]
    for column in columns:
        table.add_column(column, justify="left" if column in ("setting", "system") else "right")
    for record in records:
        table.add_row(*("" if record[c] is None else str(record[c]) for c in columns))
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default=",".join(s.key for s in SETTINGS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="one JSON object a row")
    options = parser.parse_args()
    wanted = options.rows.split(",")
    records = []
    for setting in (s for s in SETTINGS if s.key in wanted):
        folder = Path(tempfile.mkdtemp(prefix="broadcast-", dir=FOLDER))
        try:
            records.append(measure(setting, folder, options.repeats).record())
        finally:
            shutil.rmtree(folder)
        if options.json:
            print(json.dumps(records[-1]), flush=True)
    if not options.json:
        show(records, Console(width=160))


if __name__ == "__main__":
    main()
