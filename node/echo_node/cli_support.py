"""What the modules of `echo-node`'s command line share: options, errors as exit codes, logging."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from echo_p2p.errors import EchoError, StoppedError, lone_cause

DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        envvar="ECHO_NODE_HOME",
        help="Where the key and what is downloaded are kept.",
        show_default="the platform's user data folder",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        envvar="ECHO_NODE_CONFIG",
        metavar="FILE",
        help="The node.toml with your limits.",
        show_default="in the platform's configuration folder",
    ),
]


@contextmanager
def errors_as_exit_codes(
    explained_with: tuple[str | None, Path | None] | None = None,
) -> Iterator[None]:
    """`explained_with`: name the check of `doctor` too, for this bootstrap file and folder."""
    try:
        yield
    except EchoError as error:
        _fail(error, explained_with)
    except KeyboardInterrupt:
        raise typer.Exit(StoppedError.exit_code) from None
    except BaseExceptionGroup as group:
        if group.subgroup(KeyboardInterrupt) is not None:
            raise typer.Exit(StoppedError.exit_code) from None
        cause = lone_cause(group)
        if cause is None:
            raise
        _fail(cause, explained_with)


def _fail(error: EchoError, explained_with: tuple[str | None, Path | None] | None) -> None:
    typer.echo(f"echo-node: {error}", err=True)
    if explained_with is not None:
        from echo_node.doctor.explain import hint

        bootstrap, data_dir = explained_with
        told = hint(error, bootstrap=bootstrap, data_dir=data_dir)
        if told:
            typer.echo(told, err=True)
    raise typer.Exit(error.exit_code) from None


def set_up_logging(level: str) -> None:
    if level not in ("debug", "info", "warning", "error"):
        raise typer.BadParameter("choose debug, info, warning or error", param_hint="--log-level")
    logging.basicConfig(
        stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s", level="WARNING"
    )
    for name in ("echo_node", "echo_p2p"):
        logging.getLogger(name).setLevel(level.upper())
    logging.getLogger("libp2p").setLevel("CRITICAL")  # what of it matters, we report ourselves
