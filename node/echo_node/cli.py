"""`echo-node`: the volunteer's command. Each subcommand imports what it needs itself."""

from __future__ import annotations

from typing import Annotated

import typer

from echo_node.cli_own import add_commands
from echo_node.cli_support import (
    ConfigFile,
    DataDir,
    errors_as_exit_codes,
    set_up_logging,
)
from echo_node.commands import bench, limits, running
from echo_p2p import __version__

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Give your computer's idle time to the training of a language model.",
)

LISTEN = "/ip4/0.0.0.0/tcp/0"
THREADS_VARIABLE = "ECHO_NODE_THREADS"

Bootstrap = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|URL",
        help="The bootstrap_peers.toml of the network to join.",
        show_default="the packaged one: the demo network on this machine",
    ),
]
RunId = Annotated[
    str | None,
    typer.Option(metavar="ID", help="The run to join.", show_default="the only one in the file"),
]
Listen = Annotated[
    list[str] | None,
    typer.Option(
        metavar="MULTIADDR",
        help="Where other nodes can reach this one; may be repeated.",
        show_default=f"{LISTEN}, any free port on all interfaces",
    ),
]


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"echo-node {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    pass


@app.command()
def join(
    bootstrap: Bootstrap = None,
    run: RunId = None,
    data_dir: DataDir = None,
    listen: Listen = None,
    config: ConfigFile = None,
    limit: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="A limit for this time, like ram=4GB; may be repeated. See `echo-node limits`.",
        ),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(
            min=0,
            envvar=THREADS_VARIABLE,
            help="CPU threads to use: the limit cpu_threads.",
            show_default="half of the cores",
        ),
    ] = None,
    max_sequences: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Most answers generated at a time; fewer need less memory.",
            show_default="as many as fit",
        ),
    ] = None,
    engine: Annotated[
        str, typer.Option(help="What generates: auto, or the name of an engine.")
    ] = "auto",
    max_upload: Annotated[
        str | None,
        typer.Option(
            metavar="RATE",
            help="Most to send, like 20mbit or 2.5MB a second; 0 gives no chunks to other nodes.",
            show_default="the limit upload",
        ),
    ] = None,
    max_download: Annotated[
        str | None,
        typer.Option(
            metavar="RATE",
            help="Most to receive, like 50mbit.",
            show_default="the limit download",
        ),
    ] = None,
    auto_update: Annotated[
        bool,
        typer.Option(
            "--auto-update", help="Install newer releases, if they are signed, and start anew."
        ),
    ] = False,
    json_lines: Annotated[
        bool, typer.Option("--json", help="Print events as JSON, one object a line.")
    ] = False,
    plain: Annotated[
        bool, typer.Option("--plain", help="Plain lines, also on a terminal: for screen readers.")
    ] = False,
    log_level: Annotated[
        str, typer.Option(help="debug, info, warning or error; goes to stderr.")
    ] = "warning",
    until_eof: Annotated[
        bool, typer.Option(hidden=True, help="Stop when stdin closes; for programs that start us.")
    ] = False,
) -> None:
    """Join a run and work for it until Ctrl-C.

    The first Ctrl-C hands in what is running, the second quits at once.
    """
    set_up_logging(log_level)
    with errors_as_exit_codes(explained_with=(bootstrap, data_dir)):
        from echo_node.commands.join import prepared, run_node
        from echo_node.control.lock import refuse_running
        from echo_node.paths import node_folder

        refuse_running(node_folder(data_dir))  # before the imports that take a second
        options = prepared(
            folder=node_folder(data_dir),
            bootstrap=bootstrap,
            run=run,
            listen=tuple(listen or [LISTEN]),
            config=config,
            limits=limit or [],
            threads=threads,
            max_sequences=max_sequences,
            engine=engine,
            max_upload=max_upload,
            max_download=max_download,
            auto_update=auto_update,
            until_eof=until_eof,
        )
        raise typer.Exit(run_node(options, json_lines=json_lines, plain=plain))


@app.command()
def doctor(
    checks: Annotated[
        list[str] | None, typer.Argument(metavar="[CHECK]...", help="Only these checks.")
    ] = None,
    fit: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Would this model fit? A folder, or a name like Qwen2.5-1.5B; nothing is fetched.",
            show_default="the run's",
        ),
    ] = None,
    context: Annotated[
        int | None,
        typer.Option(
            min=16,
            help="Tokens of prompt and answer that --fit counts with.",
            show_default="the run's, or 2048",
        ),
    ] = None,
    bootstrap: Bootstrap = None,
    run: RunId = None,
    data_dir: DataDir = None,
    listen: Listen = None,
    offline: Annotated[
        bool, typer.Option(help="Ask nothing of the network, and measure no rates.")
    ] = False,
    json_wanted: Annotated[
        bool, typer.Option("--json", help="Print one JSON object with every finding.")
    ] = False,
) -> None:
    """Look for what could keep this computer from joining, and say what to do about it.

    Ends with 0 if all is well, 20 if something may hinder, 21 if something keeps it from joining.
    """
    set_up_logging("error")
    with errors_as_exit_codes():
        from echo_node.commands.doctor import doctor
        from echo_node.doctor.situation import Question
        from echo_node.paths import config_file, node_folder

        question = Question(
            folder=node_folder(data_dir),
            config=config_file(),
            bootstrap=bootstrap,
            run=run,
            listen=tuple(listen or [LISTEN]),
            model=fit,
            context=context,
            offline=offline,
        )
        raise typer.Exit(doctor(question, checks or (), json_wanted=json_wanted))


add_commands(app)
running.register(app)
bench.register(app)
app.add_typer(limits.app, name="limits")


def main() -> None:
    app()


if __name__ == "__main__":
    main()
