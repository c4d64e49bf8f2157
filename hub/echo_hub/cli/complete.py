"""What a shell offers for an argument, from the run whose folder stands before it on the line.

Promises: a run that cannot be read has nothing to offer, and nothing is printed.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from echo_p2p.errors import EchoError

if TYPE_CHECKING:
    from echo_hub.paths import RunFolder


def peer_ids(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """The nodes of the run that begin so, each with what it gave."""
    from echo_hub.commands.nodes import list_nodes

    folder = _folder(ctx)
    if folder is None:
        return []
    try:
        found = list_nodes(folder.root)
    except EchoError:
        return []
    return [
        (one["node"], "banned" if one["banned"] else f"{one['accepted']} rollouts accepted")
        for one in found
        if one["node"].startswith(incomplete)
    ]


def versions(ctx: typer.Context, incomplete: str) -> list[str]:
    """The versions whose checkpoints the run keeps, the newest first."""
    folder = _folder(ctx)
    kept = [] if folder is None else sorted(folder.kept(), reverse=True)
    return [str(one) for one in kept if str(one).startswith(incomplete)]


def _folder(ctx: typer.Context) -> RunFolder | None:
    from echo_hub.commands.status import run_folder

    # an option that waits for its value keeps the arguments before it from being assigned
    given = ctx.params.get("folder") or next(iter(ctx.args), None)
    if given is None:
        return None
    try:
        return run_folder(Path(given))
    except EchoError:
        return None
