"""`echo-node limits`: what is in force and from where; `limits set` changes a running node's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from echo_node.cli_support import ConfigFile, DataDir, Json, errors_as_exit_codes

if TYPE_CHECKING:
    from pathlib import Path

    from echo_node.limits.book import Book, Entry

app = typer.Typer(invoke_without_command=True, add_completion=False)


@app.callback()
def limits(
    context: typer.Context,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Show the limits in force, and where each is from: default, file, flag, or changed since.

    Without a running node: those that the next one would have.
    """
    if context.invoked_subcommand is not None:
        return
    with errors_as_exit_codes():
        from echo_node.control.client import ask_node
        from echo_node.control.messages import GetLimits, LimitsInForce
        from echo_node.limits.book import Book
        from echo_node.paths import config_file, node_folder
        from echo_p2p.errors import NotRunningError

        try:
            shown = ask_node(node_folder(data_dir), GetLimits(), LimitsInForce)
            file, entries, where = shown.file, shown.entries, "in force"
        except NotRunningError:
            path = config_file(config)
            file, entries = str(path), Book.read(path, required=config is not None).entries()
            where = "no node is running; the next one has these"
        _print(file, entries, where, as_json)


@app.command("set")
def set_limits(
    assignments: Annotated[
        list[str],
        typer.Argument(metavar="NAME=VALUE...", help="Like ram=4GB 'hours=daily 22:00-07:00'."),
    ],
    save: Annotated[
        bool, typer.Option("--save", help="Write them to node.toml too, for the next start.")
    ] = False,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Change limits of the running node; with --save in node.toml too, and then none need run."""
    with errors_as_exit_codes():
        from echo_node.control.client import ask_node
        from echo_node.control.lock import find_running
        from echo_node.control.messages import LimitsInForce, SetLimits
        from echo_node.limits.book import Book, parse_assignments
        from echo_node.limits.book import save as write
        from echo_node.paths import config_file, node_folder
        from echo_p2p.errors import NotRunningError

        changes = parse_assignments(assignments)
        folder = node_folder(data_dir)
        try:
            find_running(folder)
        except NotRunningError:
            if not save:
                raise
            path = config_file(config)
            Book.read(path).changed(changes, "file")
            write(path, changes)
            _print(str(path), Book.read(path).entries(), "written; no node is running", as_json)
            return
        shown = ask_node(folder, SetLimits(changes=changes, save=save), LimitsInForce)
        changed = [entry for entry in shown.entries if entry.name in changes]
        _print(shown.file, changed, "in force now", as_json)


def read_book(
    path: Path,
    *,
    required: bool,
    assignments: list[str],
    threads: int | None,
    upload: str | None,
    download: str | None,
) -> Book:
    """The limits to join with: the file's, and over them the flags'."""
    from echo_node.limits.book import Book, parse_assignments
    from echo_p2p.rates import UNLIMITED, parse_limits

    parse_limits(upload=upload or UNLIMITED, download=download or UNLIMITED)
    flags = parse_assignments(assignments)
    shorter = {"cpu_threads": threads, "upload": upload, "download": download}
    flags |= {name: str(value) for name, value in shorter.items() if value is not None}
    return Book.read(path, required=required).changed(flags, "flag")


def _print(file: str, entries: list[Entry], where: str, as_json: bool) -> None:
    if as_json:
        import msgspec

        answer = {"file": file, "limits": entries}
        typer.echo(msgspec.json.encode(answer).decode())
        return
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("limit", "value", "from", "what it is"):
        table.add_column(column, overflow="fold", ratio=1 if column == "what it is" else None)
    for entry in entries:
        table.add_row(entry.name, entry.value or "none", entry.source, entry.meaning)
    console.print(table, markup=False)
    console.print(f"\n{where}; file: {file}", markup=False, soft_wrap=True)
