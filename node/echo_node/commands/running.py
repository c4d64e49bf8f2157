"""Commands to the running node: `status`, `pause`, `resume`, `leave`, `logs`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from echo_node.cli_support import DataDir, Json, errors_as_exit_codes

if TYPE_CHECKING:
    from echo_node.paths import NodeFolder
    from echo_node.snapshot import LogLine, Snapshot

LOOK_S = 0.2
FOLLOW_S = 0.5


def register(app: typer.Typer) -> None:
    """Add them to the command."""
    for command in (status, pause, resume, leave, logs):
        app.command()(command)


def status(data_dir: DataDir = None, as_json: Json = False) -> None:
    """Show how the running node stands.

    Exit code 0 if it runs, paused or not; 16 if none does.
    """
    with errors_as_exit_codes():
        from echo_node.control.client import ask_node
        from echo_node.control.messages import GetStatus, Status

        _print(ask_node(_folder(data_dir), GetStatus(), Status).snapshot, as_json)


def pause(
    duration: Annotated[
        str | None,
        typer.Argument(
            metavar="[DURATION]",
            help="How long, like 20m, 1h30m or 2d.",
            show_default="until `echo-node resume`",
        ),
    ] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Stop working for a while: what runs is handed in or given back, memory is released."""
    with errors_as_exit_codes():
        from echo_node.control.client import ask_node
        from echo_node.control.messages import Pause, Status
        from echo_node.limits.amounts import parse_duration

        request = Pause(seconds=None if duration is None else parse_duration(duration))
        _print(ask_node(_folder(data_dir), request, Status).snapshot, as_json, brief=True)


def resume(data_dir: DataDir = None, as_json: Json = False) -> None:
    """Go on after `pause`. Your limits still hold: if one is against it, this says so."""
    with errors_as_exit_codes():
        from echo_node.control.client import ask_node
        from echo_node.control.messages import Resume, Status

        snapshot = ask_node(_folder(data_dir), Resume(), Status).snapshot
        _print(snapshot, as_json, brief=True)


def leave(
    wait: Annotated[bool, typer.Option(help="Wait until it has ended.")] = True,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """End the node in order: hand in what runs, give back the rest, say goodbye to the hub."""
    with errors_as_exit_codes():
        from echo_node.control.client import ask_node
        from echo_node.control.messages import Leave, Status

        folder = _folder(data_dir)
        snapshot = ask_node(folder, Leave(), Status).snapshot
        if wait and not as_json:
            typer.echo(f"Process {snapshot.pid} is leaving ...")
        while wait and _is_running(folder):
            time.sleep(LOOK_S)
        if as_json:
            _print(snapshot, as_json)
        elif wait:
            typer.echo("It has left.")


def logs(
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, max=1000, help="How many.")] = 50,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more.")] = False,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Show the last things the running node said."""
    with errors_as_exit_codes():
        from echo_node.control.client import ask_node
        from echo_node.control.messages import MOST_LINES, GetLogs, Logs
        from echo_p2p.errors import NotRunningError

        folder, last = _folder(data_dir), -1
        found = ask_node(folder, GetLogs(most=lines), Logs).lines
        while True:
            for line in found:
                _print_line(line, as_json)
                last = line.number
            if not follow:
                return
            time.sleep(FOLLOW_S)
            try:
                found = ask_node(folder, GetLogs(after=last, most=MOST_LINES), Logs).lines
            except NotRunningError:
                return  # it has left


def _folder(data_dir: Path | None) -> NodeFolder:
    from echo_node.paths import node_folder

    return node_folder(data_dir)


def _is_running(folder: NodeFolder) -> bool:
    from echo_node.control.lock import find_running
    from echo_p2p.errors import NotRunningError

    try:
        find_running(folder)
    except NotRunningError:
        return False
    return True


def _print(snapshot: Snapshot, as_json: bool, *, brief: bool = False) -> None:
    if as_json:
        import msgspec

        typer.echo(msgspec.json.encode(snapshot).decode())
        return
    from echo_node.screen.facts import facts, headline

    typer.echo(headline(snapshot))
    for label, value in () if brief else facts(snapshot):
        typer.echo(f"{label + ':':<10} {value}")


def _print_line(line: LogLine, as_json: bool) -> None:
    if as_json:
        import msgspec

        typer.echo(msgspec.json.encode(line).decode())
    else:
        typer.echo(f"{time.strftime('%H:%M:%S', time.localtime(line.at))} {line.text}")
