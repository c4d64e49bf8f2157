"""`echo-hub resume`: lets a paused run go on, whether or not its hub is running."""

from __future__ import annotations

from pathlib import Path

import trio

from echo_hub.commands.nodes import ask_the_hub
from echo_hub.commands.status import run_folder
from echo_hub.config import load_config
from echo_hub.ledger.ledger import Ledger, is_served, read_paused
from echo_p2p.errors import LedgerError


def resume_run(root: Path) -> int:
    """Let the paused run in a folder go on; the version it goes on from."""
    folder = run_folder(root)
    pause = read_paused(folder.ledger)
    if pause is None:
        raise LedgerError("the run is not paused.", fix="`echo-hub status RUN` says how it is.")
    if is_served(folder.ledger):
        ask_the_hub(folder.ledger, None)
    else:
        trio.run(_do_it, folder.ledger, load_config(folder.config).run.id, pause.version)
    return pause.version


async def _do_it(path: Path, run_id: str, version: int) -> None:
    async with Ledger.open(path, run_id) as ledger:
        await ledger.resume(version)
        await ledger.record_event("resumed", version=version)
