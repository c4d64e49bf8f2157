"""`echo-hub resume`: lets a paused run go on, whether or not its hub is running."""

from __future__ import annotations

from pathlib import Path

from echo_hub.commands.status import run_folder
from echo_hub.control.actions import ResumeRun
from echo_hub.control.order import order
from echo_hub.ledger.ledger import read_paused
from echo_p2p.errors import LedgerError


def resume_run(root: Path) -> int:
    """Let the paused run in a folder go on; the version it goes on from."""
    pause = read_paused(run_folder(root).ledger)
    if pause is None:
        raise LedgerError("the run is not paused.", fix="`echo-hub status RUN` says how it is.")
    order(root, ResumeRun())
    return pause.version
