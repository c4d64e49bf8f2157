"""What all commands of `echo-hub` share: the application, common arguments, clearing up."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from echo_p2p import __version__

app = typer.Typer(
    name="echo-hub",
    help="Train a language model by reinforcement learning on volunteers' computers.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"echo-p2p {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


@contextmanager
def clearing_up() -> Iterator[None]:
    """A SIGTERM within the block leaves it as an exception, so that no half-made folder stays."""

    def leave(number: int, _: object) -> NoReturn:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


Folder = Annotated[Path, typer.Argument(help="The run's folder, made by `echo-hub init`.")]
Json = Annotated[bool, typer.Option("--json", help="Machine-readable output on stdout.")]
