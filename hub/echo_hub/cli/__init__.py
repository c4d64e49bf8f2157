"""`echo-hub`: the operator's commands. Only arguments and output here; heavy imports are lazy.

Exit codes: 0 done; 1 unexpected; 2 configuration or usage; 3 identity; 4-12 as in
`echo_p2p.errors`; 130 stopped by a second Ctrl-C.
"""

from __future__ import annotations

import sys
from typing import NoReturn

# each adds its commands, in the order in which `--help` shows them
import echo_hub.cli.run

# isort: split
import echo_hub.cli.control

# isort: split
import echo_hub.cli.keep  # noqa: F401

# isort: split
from echo_hub.cli.shared import app
from echo_p2p.errors import EchoError, lone_cause

__all__ = ["app", "main"]


def _end(error: EchoError) -> NoReturn:
    from rich.console import Console

    console = Console(stderr=True, soft_wrap=True)
    console.print(f"error: {error.message}", style="bold red", markup=False, highlight=False)
    if error.fix:
        console.print(error.fix, markup=False, highlight=False)
    sys.exit(error.exit_code)


def main() -> None:
    """Entry point of the `echo-hub` command."""
    try:
        app()
    except EchoError as error:
        _end(error)
    except BaseExceptionGroup as group:
        cause = lone_cause(group)
        if cause is None:
            raise
        _end(cause)
