"""Draw the live screen of the node that runs with a folder: `screenshot.py FOLDER OUT.svg`.

What it shows is what `echo-node status` and `echo-node logs` say, drawn by the screen's own code.

    python scripts/screenshot.py ~/.local/share/echo-p2p docs/node.svg [--width 80] [--height 24]
"""

from __future__ import annotations

import argparse
import io
from pathlib import Path

from rich.console import Console

from echo_node.control.client import ask_node
from echo_node.control.messages import GetLogs, GetStatus, Logs, Status
from echo_node.paths import node_folder
from echo_node.screen.draw import Screen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--width", type=int, default=80)
    parser.add_argument("--height", type=int, default=24)
    asked = parser.parse_args()
    folder = node_folder(asked.folder)
    snapshot = ask_node(folder, GetStatus(), Status).snapshot
    lines = ask_node(folder, GetLogs(most=asked.height), Logs).lines
    console = Console(
        record=True, width=asked.width, height=asked.height, file=io.StringIO(), force_terminal=True
    )
    console.print(Screen(snapshot, "", lines))
    asked.out.write_text(console.export_svg(title="echo-node join"), encoding="utf-8")


if __name__ == "__main__":
    main()
