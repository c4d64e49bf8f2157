"""`echo-hub`: the operator's commands. Only arguments and output here; heavy imports are lazy.

Exit codes: 0 done; 1 unexpected; 2 configuration or usage; 3 identity; 4-12 as in
`echo_p2p.errors`; 130 stopped by a second Ctrl-C.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

import msgspec
import typer

from echo_p2p import __version__
from echo_p2p.errors import EchoError, lone_cause

app = typer.Typer(
    name="echo-hub",
    help="Train a language model by reinforcement learning on volunteers' computers.",
    no_args_is_help=True,
    add_completion=False,
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
def _clearing_up() -> Iterator[None]:
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


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="A folder that does not exist yet, or is empty.")],
    run_id: Annotated[
        str | None, typer.Option("--run", help="The run's id.", show_default="my-run")
    ] = None,
    model: Annotated[
        str,
        typer.Option(
            help="Preset to start from: addmix3, smollm2, or a small base for a task, made in "
            "minutes: sokoban, wordle, knights-knaves, mathematics, countdown."
        ),
    ] = "addmix3",
    task: Annotated[
        str | None, typer.Option(help="A built-in task for smollm2, instead of small sums.")
    ] = None,
    address: Annotated[
        list[str] | None,
        typer.Option(help="Host name or IP at which volunteers reach this hub; repeatable."),
    ] = None,
    port: Annotated[int, typer.Option(min=1, max=65534, help="TCP port; the next one too.")] = (
        42420
    ),
    local_demo: Annotated[
        bool, typer.Option(help="The packaged local network: loopback only, a public key.")
    ] = False,
) -> None:
    """Make a hub's identity, a commented run.toml, and bootstrap_peers.toml for volunteers."""
    from echo_hub.commands.setup_run import init_run

    with _clearing_up():
        made = init_run(
            folder,
            run_id=run_id,
            model=model,
            hosts=address or [],
            port=port,
            local_demo=local_demo,
            task=task,
        )
    typer.echo(f"run folder   {made.root}")
    typer.echo(f"settings     {made.config}")
    typer.echo(f"for nodes    {made.bootstrap}")
    typer.echo(f"\nNow: echo-hub serve {made.config}")
    join = "echo-node join" + ("" if local_demo else f" --bootstrap {made.bootstrap.name}")
    typer.echo(f"Volunteers: {join}")


@app.command()
def serve(
    config: Annotated[Path, typer.Argument(help="The run.toml in a run's folder.")],
    json_lines: Json = False,
) -> None:
    """Serve a run until it is complete or stopped (Ctrl-C finishes the update in hand)."""
    from echo_hub.commands.serve import serve_run

    serve_run(config, json_lines=json_lines)


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
def resume(folder: Folder, json_output: Json = False) -> None:
    """Let a paused run go on. Also while serving."""
    from echo_hub.commands.resume import resume_run

    version = resume_run(folder)
    typer.echo(
        json.dumps({"resumed": version}) if json_output else f"goes on from version {version}"
    )


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


@app.command()
def calibrate(
    folder: Folder,
    rollouts: Annotated[int, typer.Option(min=100, help="Honest rollouts to measure.")] = 2000,
    json_output: Json = False,
) -> None:
    """Measure honest work of this machine's engine and set the audit's thresholds by it."""
    from echo_hub.audit.honest import calibrate_run
    from echo_hub.paths import RunFolder

    def progress(done: int, total: int) -> None:
        if not json_output:
            typer.echo(f"{done} of {total} rollouts", err=True)

    made = calibrate_run(RunFolder(folder.absolute()), rollouts=rollouts, progress=progress)
    if json_output:
        typer.echo(msgspec.json.encode(made).decode())
        return
    typer.echo(
        f"{made.rollouts} honest rollouts, {made.tokens} tokens, {made.mismatches} not the "
        f"auditor's\nthresholds: margin {made.max_margin:.3g}, difference of log-probability "
        f"{made.max_logprob_difference:.3g}\nfalse positives: {made.false_positives} of "
        f"{made.judged} rollouts, at most {made.false_positive_rate_upper:.2g} (95 % confidence)"
    )


@app.command()
def export(
    folder: Folder,
    out: Annotated[Path, typer.Argument(help="A folder that does not exist yet, or is empty.")],
    version: Annotated[
        int | None, typer.Option(min=0, help="The version.", show_default="the newest")
    ] = None,
    merge: Annotated[bool, typer.Option(help="A whole model with its tokenizer.")] = False,
    json_output: Json = False,
) -> None:
    """Write a version as a PEFT adapter or a merged model, with a card. Also while serving."""
    from echo_hub.commands.export import export_run

    with _clearing_up():
        made = export_run(folder, out, version=version, merge=merge)
    if json_output:
        typer.echo(json.dumps(made.as_dict()))
    else:
        typer.echo(
            f"version {made.version} of {made.run}: {made.kind}, {made.bytes} bytes, {made.out}"
        )


@app.command("filter")
def filter_prompts(
    folder: Folder,
    prompts: Annotated[int, typer.Option(min=1, help="Train prompts of each task.")] = 1000,
    rollouts: Annotated[int, typer.Option(min=2, max=64, help="Answers to each prompt.")] = 8,
    low: Annotated[float, typer.Option(help="Smallest pass rate that is kept.")] = 0.1,
    high: Annotated[float, typer.Option(help="Largest pass rate that is kept.")] = 0.9,
    out: Annotated[
        Path | None, typer.Option(help="The file to write.", show_default="kept.json in FOLDER")
    ] = None,
    json_output: Json = False,
) -> None:
    """Measure how often the base solves each prompt, and keep those worth training on."""
    from echo_hub.commands.filtering import Band, filter_run
    from echo_hub.commands.status import run_folder

    def progress(task: str, done: int, total: int) -> None:
        if not json_output:
            typer.echo(f"{task}: {done} of {total} prompts", err=True)

    run = run_folder(folder)
    file = (out or run.root / "kept.json").absolute()
    made = filter_run(
        run, file, prompts=prompts, rollouts=rollouts, band=Band(low, high), progress=progress
    )
    if json_output:
        tasks = {one.label: {"measured": len(one.rates), "kept": len(one.prompts)} for one in made}
        typer.echo(json.dumps({"file": str(file), "tasks": tasks}))
        return
    for one in made:
        typer.echo(f"{one.label}: {len(one.prompts)} of {len(one.rates)} prompts kept")
    typer.echo(f"Now, in each task of run.toml: kept = {json.dumps(str(file))}")


@app.command()
def plan(
    config: Annotated[Path, typer.Argument(help="The run.toml of the run.")],
    fleet: Annotated[Path, typer.Option(help="Fleet file: cards, prices, links (TOML).")],
    json_output: Json = False,
    png: Annotated[
        Path | None, typer.Option(help="Draw time and money against nodes into this PNG file.")
    ] = None,
) -> None:
    """How many nodes, which ones, with which staleness, and what 100 updates take and cost."""
    from echo_hub.config import load_config
    from echo_hub.planner.fleet import load_fleet
    from echo_hub.planner.plan import make_plan
    from echo_hub.planner.show import render_plan, save_png

    made = make_plan(load_config(config), load_fleet(fleet))
    if png is not None:
        save_png(made, png)
    if json_output:
        typer.echo(json.dumps(made.as_dict()))
    else:
        render_plan(made)


@app.command()
def demo(
    nodes: Annotated[int, typer.Option(min=1, max=32, help="Node processes.")] = 3,
    cheaters: Annotated[int, typer.Option(min=0, help="How many of the nodes cheat.")] = 0,
    updates: Annotated[int, typer.Option(min=0, help="Learner updates; 0: the preset's.")] = 0,
    mode: Annotated[str, typer.Option(help="async or sequential.")] = "async",
    staleness: Annotated[
        int | None,
        typer.Option(min=0, max=100, help="S, in versions; async mode only. [default: 2]"),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the run.")] = 0,
    model: Annotated[
        str, typer.Option(help="addmix3, smollm2, or a small base for a task.")
    ] = "addmix3",
    adapter: Annotated[
        str, typer.Option(help="lora, or none: train and send all weights.")
    ] = "lora",
    task: Annotated[
        str | None, typer.Option(help="Another task, like file:my_task.py. [default: the model's]")
    ] = None,
    json_output: Json = False,
    keep: Annotated[
        Path | None, typer.Option(help="Keep the run's folder and the nodes' logs here.")
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(help="Write the last screen to this SVG file.")
    ] = None,
) -> None:
    """A hub and a few nodes on this machine: watch a policy learn, then a summary."""
    from echo_hub.commands.demo import DemoOptions, check_rise, run_demo

    options = DemoOptions(
        nodes=nodes,
        cheaters=cheaters,
        updates=updates,
        mode=mode,
        staleness=staleness,
        seed=seed,
        model=model,
        adapter=adapter,
        task=task,
        keep=keep,
        picture=picture,
    )
    summary: dict[str, Any] = run_demo(options, live=not json_output)
    if json_output:
        typer.echo(json.dumps(summary))
    check_rise(summary, model, task)


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


if __name__ == "__main__":
    main()
