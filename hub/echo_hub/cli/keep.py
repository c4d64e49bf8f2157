"""What is taken out of a run, and put back: export, backup, restore."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from echo_hub.cli import complete
from echo_hub.cli.shared import Folder, Json, app, clearing_up


@app.command()
def export(
    folder: Folder,
    out: Annotated[Path, typer.Argument(help="A folder that does not exist yet, or is empty.")],
    version: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="The version.",
            show_default="the newest",
            autocompletion=complete.versions,
        ),
    ] = None,
    merge: Annotated[bool, typer.Option(help="A whole model with its tokenizer.")] = False,
    json_output: Json = False,
) -> None:
    """Write a version as a PEFT adapter or a merged model, with a card. Also while serving."""
    from echo_hub.commands.export import export_run

    with clearing_up():
        made = export_run(folder, out, version=version, merge=merge)
    if json_output:
        typer.echo(json.dumps(made.as_dict()))
    else:
        typer.echo(
            f"version {made.version} of {made.run}: {made.kind}, {made.bytes} bytes, {made.out}"
        )


@app.command()
def backup(
    folder: Folder,
    out: Annotated[Path, typer.Argument(help="A folder that does not exist yet, or is empty.")],
    json_output: Json = False,
) -> None:
    """Copy a whole run, with its key, so that it can go on elsewhere. Also while serving."""
    from echo_hub.backups.backup import backup_run

    with clearing_up():
        made = backup_run(folder, out)
    if json_output:
        typer.echo(json.dumps(made.as_dict()))
        return
    typer.echo(f"version {made.version} of {made.run}: {made.bytes} bytes, {made.out}")
    typer.echo("It holds the hub's private key: whoever has it is your hub.")
    for path in made.outside:
        typer.echo(f"not in it, and needed where it is restored: {path}")


@app.command()
def restore(
    backup_folder: Annotated[
        Path, typer.Argument(metavar="BACKUP", help="What `echo-hub backup` made.")
    ],
    folder: Annotated[Path, typer.Argument(help="A folder that does not exist yet, or is empty.")],
    after: Annotated[
        int | None,
        typer.Option(min=0, help="The newest version nodes have seen, if the run went on."),
    ] = None,
    json_output: Json = False,
) -> None:
    """Make a run's folder out of a backup; it goes on under the same key."""
    from echo_hub.backups.restore import restore_run

    with clearing_up():
        made = restore_run(backup_folder, folder, after=after)
    if json_output:
        typer.echo(json.dumps(made.as_dict()))
        return
    typer.echo(f"{made.run} goes on from version {made.version}: {made.folder}")
    for path in made.missing:
        typer.echo(f"not on this machine, and run.toml names it: {path}")
    typer.echo("The hub that it was taken from must not run any more: two would have one key.")
    typer.echo(f"\nNow: echo-hub serve {made.folder / 'run.toml'}")
