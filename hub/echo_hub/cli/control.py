"""What an operator sees of a run and does to it: status, nodes, ban, resume, trace and the like."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from echo_hub.cli import complete
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


Node = Annotated[
    str,
    typer.Argument(
        metavar="PEER_ID", help="As `echo-hub nodes` shows it.", autocompletion=complete.peer_ids
    ),
]


@app.command()
def nodes(
    folder: Folder,
    node: Annotated[
        str | None,
        typer.Argument(
            metavar="PEER_ID",
            help="One of them in full.",
            autocompletion=complete.peer_ids,
            show_default=False,
        ),
    ] = None,
    json_output: Json = False,
) -> None:
    """The nodes of a run: what they gave, why it was rejected, their standing, who is banned."""
    from echo_hub.commands.nodes import list_nodes, render_nodes
    from echo_hub.commands.one_node import node_in_full, render_node

    if node is not None:
        one = node_in_full(folder, node)
        if json_output:
            typer.echo(json.dumps(one))
        else:
            render_node(one)
        return
    found = list_nodes(folder)
    if json_output:
        typer.echo(json.dumps(found))
    else:
        render_nodes(found)


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
def quarantine(
    folder: Folder,
    node: Node,
    why: Annotated[str, typer.Option(help="For your own records.")] = "the operator decided so.",
    json_output: Json = False,
) -> None:
    """Let a node work on, audit all of it, and train on nothing of it. Also while serving."""
    from echo_hub.commands.nodes import node_key
    from echo_hub.control.actions import Quarantine

    _order(folder, Quarantine(node_key(node), why), json_output)


@app.command()
def release(folder: Folder, node: Node, json_output: Json = False) -> None:
    """End a node's quarantine. Also while serving."""
    from echo_hub.commands.nodes import node_key
    from echo_hub.control.actions import Release

    _order(folder, Release(node_key(node)), json_output)


@app.command()
def annotate(
    folder: Folder,
    node: Node,
    name: Annotated[str, typer.Option(help="Shown to the public, in place of its id.")] = "",
    note: Annotated[str, typer.Option(help="For you alone.")] = "",
    json_output: Json = False,
) -> None:
    """Give a node a name and a note; without either, take them away. Also while serving."""
    from echo_hub.commands.nodes import node_key
    from echo_hub.control.actions import Annotate

    _order(folder, Annotate(node_key(node), name, note), json_output)


@app.command()
def pause(
    folder: Folder,
    why: Annotated[str, typer.Option(help="Shown until it goes on.")] = "an operator paused it.",
    json_output: Json = False,
) -> None:
    """Make no more updates until `resume`; nodes stay connected. Also while serving."""
    from echo_hub.control.actions import PauseRun

    _order(folder, PauseRun(why), json_output)


@app.command()
def publish(folder: Folder, json_output: Json = False) -> None:
    """Send the learner's version to the nodes now, though it is not due. While serving."""
    from echo_hub.control.actions import PublishNow

    _order(folder, PublishNow(), json_output)


Version = Annotated[
    int,
    typer.Argument(
        min=0, help="A version whose checkpoint is kept.", autocompletion=complete.versions
    ),
]


@app.command()
def rollback(folder: Folder, version: Version, json_output: Json = False) -> None:
    """Go on from the weights of an earlier version, under a new number. While serving."""
    from echo_hub.control.actions import RollBack

    _order(folder, RollBack(version), json_output)


@app.command()
def pin(folder: Folder, version: Version, json_output: Json = False) -> None:
    """Keep a version's checkpoint for good. Also while serving."""
    from echo_hub.control.actions import Pin

    _order(folder, Pin(version), json_output)


@app.command()
def unpin(folder: Folder, version: Version, json_output: Json = False) -> None:
    """Keep a version's checkpoint no longer than others. Also while serving."""
    from echo_hub.control.actions import Unpin

    _order(folder, Unpin(version), json_output)


def _order(folder: Path, action: Any, json_output: bool) -> None:
    """Have an action done, and say what was done."""
    from echo_hub.control.order import order

    sentence = order(folder, action)
    typer.echo(json.dumps({"done": sentence}) if json_output else sentence)


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
