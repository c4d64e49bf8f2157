"""How long until the last node has a new policy? Ours and its rivals, beside the physical bound.

In a lab of network namespaces (`tests/netlab`; Linux, root) a hub publishes an artifact to nodes
whose links are capped. Time runs from the announcement until the last node has the artifact
verified on its disk. All programs are real ones, and as in a run they are connected beforehand.

    python benchmarks/broadcast.py [--rows a,b,...] [--repeats 3] [--json | --markdown]

"ratio" is seconds over the bound, "hub copies" what left through the hub's link in copies of the
artifact, "CPU s" that of all programs together, "MiB" the most memory a node ever held. Rivals
(`pip install -e '.[bench]'`) are measured in the first setting. On a machine too slow or too busy
for the rates, `--scale 0.1` divides rates, artifact and chunks by ten: the same bound, but what it
then shows is the protocol, not the programs.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any

from broadcast_costs import measure_cpu, measure_latency
from broadcast_rivals import measure_rivals
from broadcast_settings import LATENCY, SETTINGS, Setting, chosen
from broadcast_trials import measure
from rich.console import Console
from rich.table import Table

Record = dict[str, Any]
CPU_MIB = 256
ROWS = "a,b,c,d,e,f,rivals,latency,cpu"


def run(rows: list[str], repeats: int, scale: float) -> Iterator[tuple[str, Record]]:
    """The rows, as they are measured, each with the title of its table."""
    seconds: dict[str, float] = {}
    for setting in chosen(rows):
        record = measure(setting.scaled(scale), repeats).record()
        seconds[setting.key] = record["seconds"]
        yield "broadcast", record
    if {"c4", "c32"} <= set(seconds):
        yield "growth", {"time at 32 nodes / at 4": round(seconds["c32"] / seconds["c4"], 2)}
    if "rivals" in rows:
        yield from _rivals(SETTINGS[0].scaled(scale), repeats, seconds.get("a"))
    if "latency" in rows:
        for record in measure_latency(LATENCY.scaled(scale), repeats):
            yield "what is newest?", record
    if "cpu" in rows:
        for record in measure_cpu(CPU_MIB, repeats):
            yield "CPU", record


def _rivals(setting: Setting, repeats: int, ours_s: float | None) -> Iterator[tuple[str, Record]]:
    """Each rival, and how many times as long as ours it takes."""
    if ours_s is None:
        ours = measure(setting, repeats).record()
        ours_s = ours["seconds"]
        yield "rivals", ours | {"times ours": 1}
    for result in measure_rivals(setting, repeats):
        record = result.record()
        yield "rivals", record | {"times ours": round(record["seconds"] / ours_s, 2)}


def show(title: str, records: list[Record], *, markdown: bool) -> None:
    columns = list(records[0])
    rows = [[_cell(record[column]) for column in columns] for record in records]
    if markdown:
        print(f"| {' | '.join(columns)} |")
        print("|---" * len(columns) + "|")
        for row in rows:
            print(f"| {' | '.join(row)} |")
        print()
        return
    table = Table(title=title)
    for column in columns:
        table.add_column(column, justify="left" if isinstance(records[0][column], str) else "right")
    for row in rows:
        table.add_row(*row)
    Console(width=None if Console().is_terminal else 180).print(table)


def _cell(value: object) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value))
    return "" if value is None else str(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default=ROWS, help=f"which of {ROWS}; all by default")
    parser.add_argument("--repeats", type=int, default=3, help="of each; the median counts")
    parser.add_argument("--scale", type=float, default=1, help="times all rates and sizes")
    parser.add_argument("--json", action="store_true", help="a JSON object a row, as they come")
    parser.add_argument("--markdown", action="store_true", help="tables to paste")
    options = parser.parse_args()
    tables: dict[str, list[Record]] = {}
    for title, record in run(options.rows.split(","), options.repeats, options.scale):
        tables.setdefault(title, []).append(record)
        if options.json:
            print(json.dumps(record), flush=True)
    if not options.json:
        for title, records in tables.items():
            show(title, records, markdown=options.markdown)


if __name__ == "__main__":
    main()
