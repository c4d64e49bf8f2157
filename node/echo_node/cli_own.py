"""`echo-node identity | credit | service | purge`: what is the volunteer's own."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from echo_node.cli_support import DataDir, Json, errors_as_exit_codes

if TYPE_CHECKING:
    from echo_node.commands.purge import Found
    from echo_p2p.keyfile import Kind

PASSPHRASE_VARIABLE = "ECHO_NODE_PASSPHRASE"  # noqa: S105 - the name of one

identity = typer.Typer(help="This machine's key, and yours over several machines.")
credit = typer.Typer(help="What this machine gave, signed by the hub.")
service = typer.Typer(help="Run in the background, from log-in on.", no_args_is_help=True)


def add_commands(app: typer.Typer) -> None:
    """Register what is here."""
    app.add_typer(identity, name="identity", invoke_without_command=True)
    app.add_typer(credit, name="credit", invoke_without_command=True)
    app.add_typer(service, name="service")
    app.command()(purge)


# --- identity -----------------------------------------------------------------------------------


@identity.callback()
def _identity(context: typer.Context, data_dir: DataDir = None) -> None:
    if context.invoked_subcommand is None:
        show(data_dir)


@identity.command()
def show(data_dir: DataDir = None, json_wanted: Json = False) -> None:
    """Show this node's peer id, and whose it is; its key is made on first use."""
    with errors_as_exit_codes():
        from echo_node.commands.identity import show as look
        from echo_node.paths import node_folder

        found = look(node_folder(data_dir))
        if json_wanted:
            typer.echo(json.dumps(found))
            return
        typer.echo(found["node"])
        if found["person"]:
            typer.echo(f"of {found['name'] or 'a person without a name'}, {found['person']}")


@identity.command()
def person(
    name: Annotated[
        str, typer.Option(help="Shown on the run's leader board; empty for none.")
    ] = "",
    data_dir: DataDir = None,
    json_wanted: Json = False,
) -> None:
    """Put this machine under a key of your own, and a name: what your machines give is added up.

    On your first machine the key is made. Take it to the next one: `identity export --person FILE`
    here, `identity import FILE` there, then this command there.
    """
    with errors_as_exit_codes():
        from echo_node.commands.identity import name_person
        from echo_node.paths import node_folder

        found = name_person(node_folder(data_dir), name)
        if json_wanted:
            typer.echo(json.dumps(found))
        else:
            typer.echo(f"{found['node']} is {found['name'] or 'yours'}, {found['person']}")
            typer.echo("A node that is running says so when it joins again.")


@identity.command()
def export(
    file: Annotated[Path, typer.Argument(help="A new file.")],
    person: Annotated[bool, typer.Option("--person", help="Your key, not the machine's.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Write the key to a file, under a passphrase: to keep, or to take to another computer."""
    with errors_as_exit_codes():
        from echo_node.commands.identity import export_key
        from echo_node.paths import node_folder

        kind: Kind = "person" if person else "machine"
        peer_id = export_key(node_folder(data_dir), file, kind, _passphrase(confirm=True))
        typer.echo(f"{file} holds the key of {peer_id}. Keep it, and its passphrase, apart.")


@identity.command("import")
def import_(
    file: Annotated[Path, typer.Argument(help="Made by `echo-node identity export`.")],
    data_dir: DataDir = None,
) -> None:
    """Take a key from an exported file. A key that is here already is never overwritten."""
    with errors_as_exit_codes():
        from echo_node.commands.identity import import_key
        from echo_node.paths import node_folder

        peer_id, kind = import_key(node_folder(data_dir), file, _passphrase(confirm=False))
        typer.echo(f"This computer has the {kind}'s key of {peer_id}.")
        if kind == "person":
            typer.echo("Now put this machine under it: echo-node identity person --name NAME")


def _passphrase(*, confirm: bool) -> str:
    """From the terminal, or for scripts from the environment; never an argument others can see."""
    given = os.environ.get(PASSPHRASE_VARIABLE)
    if given is not None:
        return given
    asked: str = typer.prompt("Passphrase", hide_input=True, confirmation_prompt=confirm)
    return asked


# --- credit -------------------------------------------------------------------------------------


@credit.callback()
def _credit(context: typer.Context, data_dir: DataDir = None, json_wanted: Json = False) -> None:
    """Show the newest statement of each run."""
    if context.invoked_subcommand is not None:
        return
    with errors_as_exit_codes():
        from echo_node.paths import node_folder
        from echo_node.statements import kept_statements

        found = [
            {"file": str(path), **_said(statement)}
            for path, statement in kept_statements(node_folder(data_dir))
        ]
        if json_wanted:
            typer.echo(json.dumps(found))
        elif not found:
            typer.echo("No statement yet: the hub makes one once it has accepted a group.")
        else:
            for one in found:
                _print_statement(one)
                typer.echo(f"  in {one['file']}")


@credit.command()
def verify(
    file: Annotated[Path, typer.Argument(help="A statement, from anywhere.")],
    hub: Annotated[
        str | None, typer.Option(metavar="PEER_ID", help="The hub that must have signed it.")
    ] = None,
    json_wanted: Json = False,
) -> None:
    """Check a statement of credit: whoever shows it to you, the hub signed what it says."""
    with errors_as_exit_codes():
        from echo_node.statements import checked

        said = _said(checked(file, hub))
        if json_wanted:
            typer.echo(json.dumps({"valid": True, **said}))
            return
        typer.echo("The signature holds.")
        _print_statement(said)
        if hub is None:
            typer.echo("Is that the hub of the run? Name it with --hub to be sure.")


def _said(statement: Any) -> dict[str, Any]:
    from echo_p2p.identity import peer_id_of

    said = statement.credit
    return {
        "run": said.run_id,
        "hub": statement.hub,
        "node": peer_id_of(said.node),
        "person": None if said.person is None else peer_id_of(said.person),
        "name": said.name,
        "tokens": said.tokens,
        "audited_tokens": said.audited_tokens,
        "rollouts": said.rollouts,
        "groups": said.groups,
        "since": said.since,
        "at": said.at,
    }


def _print_statement(said: dict[str, Any]) -> None:
    import time

    day = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(said["at"]))
    typer.echo(
        f"{said['tokens']} tokens ({said['audited_tokens']} of them derived again) in "
        f"{said['rollouts']} rollouts for run {said['run']}, until {day}"
    )
    typer.echo(f"  by node {said['node']}" + (f", of {said['name']}" if said["name"] else ""))
    typer.echo(f"  says hub {said['hub']}")


# --- service ------------------------------------------------------------------------------------


@service.command(context_settings={"ignore_unknown_options": True})
def install(
    join: Annotated[
        list[str] | None,
        typer.Argument(metavar="[JOIN OPTION]...", help="Options of `echo-node join`."),
    ] = None,
    data_dir: DataDir = None,
    json_wanted: Json = False,
) -> None:
    """Start the node now and at each log-in, with these options of `join`.

    It is started again when it fails, not when it ended in order or cannot work (exit code 2, 3,
    13). A systemd user unit on Linux, a launchd agent on macOS; nothing needs root.
    """
    with errors_as_exit_codes():
        from echo_node.paths import HOME_VARIABLE, node_folder
        from echo_node.service.manager import manager, this_command
        from echo_node.service.units import Service

        home = {HOME_VARIABLE: str(node_folder(data_dir).root)}
        state = manager().install(Service(this_command(["join", *(join or [])]), home))
        _tell(asdict(state), json_wanted)


@service.command()
def uninstall(json_wanted: Json = False) -> None:
    """Stop the node, and start it no more."""
    with errors_as_exit_codes():
        from echo_node.service.manager import manager

        _tell(asdict(manager().uninstall()), json_wanted)


@service.command("status")
def service_status(json_wanted: Json = False) -> None:
    """Is it installed, and does it run?"""
    with errors_as_exit_codes():
        from echo_node.service.manager import manager

        _tell(asdict(manager().state()), json_wanted)


def _tell(state: dict[str, Any], json_wanted: bool) -> None:
    if json_wanted:
        typer.echo(json.dumps(state))
    elif state["installed"]:
        typer.echo(f"installed in {state['file']}, {state['state']}")
        typer.echo(f"What it says: {state['logs']}")
    else:
        typer.echo("not installed")


# --- purge --------------------------------------------------------------------------------------


def purge(
    keep_keys: Annotated[
        bool, typer.Option("--keep-keys", help="Leave the keys: standing and credit hang on them.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    data_dir: DataDir = None,
    json_wanted: Json = False,
) -> None:
    """Delete all that this program put on this computer. Shows what, and asks, before it does."""
    with errors_as_exit_codes():
        from echo_node.commands.purge import check_end, delete, look, stop_service
        from echo_node.paths import config_file, node_folder

        folder = node_folder(data_dir)
        found = look(folder, also=[config_file()], keep_keys=keep_keys)
        if json_wanted:
            typer.echo(json.dumps([{**asdict(one), "path": str(one.path)} for one in found]))
        else:
            _list(found)
        if not found:
            return
        check_end(folder)
        if not yes and not typer.confirm("Delete it?"):
            raise typer.Exit(1)
        stop_service()
        delete(folder, found)
        if not json_wanted:
            typer.echo("Deleted. The program itself: pip uninstall echo-p2p (or pipx, or uv).")


def _list(found: list[Found]) -> None:
    if not found:
        typer.echo("There is nothing of this program here.")
        return
    from echo_node.limits.amounts import format_size

    for one in found:
        count = "1 file" if one.files == 1 else f"{one.files} files"
        typer.echo(f"{format_size(one.bytes):>10} in {count}  {one.path}")
        typer.echo(f"{'':12}{one.what}")
    typer.echo(f"{format_size(sum(one.bytes for one in found)):>10} together")
