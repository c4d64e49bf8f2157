"""What an operator sees of a run and does to it: status, nodes, ban, resume, trace and the like."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from echo_hub.cli.shared import Folder, Json, app


@app.command()
def status(folder: Folder, json_output: Json = False) -> None:
    """What a run has done so far, from its ledger; works while it is being served."""
    from echo_hub.commands.status import read_status, render_status

    facts = read_status(folder)
    if json_output:
        typer.echo(json.dumps(facts))
    else:
        render_status(facts)


@app.command()
def nodes(folder: Folder, json_output: Json = False) -> None:
    """The nodes of a run: what they gave, their standing, and who is banned."""
    from echo_hub.commands.nodes import list_nodes, render_nodes

    found = list_nodes(folder)
    if json_output:
        typer.echo(json.dumps(found))
    else:
        render_nodes(found)


Node = Annotated[str, typer.Argument(metavar="PEER_ID", help="As `echo-hub nodes` shows it.")]


@app.command()
def ban(
    folder: Folder,
    node: Node,
    why: Annotated[str, typer.Option(help="Told to the node.")] = "the operator decided so.",
    json_output: Json = False,
) -> None:
    """Shut a node out; drop what waits of it and mark what was trained on. Also while serving."""
    from echo_hub.commands.nodes import set_ban

    set_ban(folder, node, why)
    typer.echo(json.dumps({"banned": node}) if json_output else f"banned {node}")


@app.command()
def unban(folder: Folder, node: Node, json_output: Json = False) -> None:
    """Let a banned node in again, as a newcomer. Also while serving."""
    from echo_hub.commands.nodes import set_ban

    set_ban(folder, node, None)
    typer.echo(json.dumps({"unbanned": node}) if json_output else f"unbanned {node}")


@app.command()
def resume(folder: Folder, json_output: Json = False) -> None:
    """Let a paused run go on. Also while serving."""
    from echo_hub.commands.resume import resume_run

    version = resume_run(folder)
    typer.echo(
        json.dumps({"resumed": version}) if json_output else f"goes on from version {version}"
    )


@app.command()
def trace(
    folder: Folder,
    rollout: Annotated[
        str, typer.Argument(help="Its trace id; .N after it is rollout N; gN is group N.")
    ],
    json_output: Json = False,
) -> None:
    """What became of a rollout, from its lease to the update. Also while serving."""
    from echo_hub.commands.trace import render_trace, trace_rollout

    life = trace_rollout(folder, rollout)
    if json_output:
        typer.echo(json.dumps(life))
    else:
        render_trace(life)
