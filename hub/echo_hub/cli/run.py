"""What makes a run and serves it: init, serve, demo, plan, calibrate, filter."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from echo_hub.cli.shared import Folder, Json, app, clearing_up


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
    expires: Annotated[
        datetime | None,
        typer.Option(
            formats=["%Y-%m-%d"],
            help="Day (UTC) from which volunteers are asked for a newer bootstrap_peers.toml.",
            show_default="never",
        ),
    ] = None,
    local_demo: Annotated[
        bool, typer.Option(help="The packaged local network: loopback only, a public key.")
    ] = False,
) -> None:
    """Make a hub's identity, a commented run.toml, and bootstrap_peers.toml for volunteers."""
    from echo_hub.commands.setup_run import init_run

    with clearing_up():
        made = init_run(
            folder,
            run_id=run_id,
            model=model,
            hosts=address or [],
            port=port,
            local_demo=local_demo,
            task=task,
            expires=None if expires is None else expires.replace(tzinfo=UTC),
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
def check(
    config: Annotated[Path, typer.Argument(help="The run.toml, or its folder.")],
    json_output: Json = False,
) -> None:
    """Is a run.toml right, and what will the run do? Exit code 2 if something stands in its way."""
    from echo_hub.commands.check import check_run, render_check

    found = check_run(config)
    if json_output:
        typer.echo(json.dumps(found.as_dict()))
    else:
        render_check(found)
    if found.problems:
        raise typer.Exit(2)


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
    throttle: Annotated[
        str | None,
        typer.Option(
            help="Nodes and learner of a given speed: generation or learner (which of them is the "
            "limit), or seconds of an update and of a group at each node, like 3:4,4,2. The "
            "summary compares the capacity model with what was measured."
        ),
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
    from echo_hub.commands.throttled import Throttle

    slowed = None if throttle is None else Throttle.parse(throttle)
    options = DemoOptions(
        nodes=nodes if slowed is None else len(slowed.group_s),
        cheaters=cheaters,
        updates=updates,
        mode=mode,
        staleness=staleness,
        seed=seed,
        model=model,
        adapter=adapter,
        task=task,
        throttle=slowed,
        keep=keep,
        picture=picture,
    )
    summary: dict[str, Any] = run_demo(options, live=not json_output)
    if json_output:
        typer.echo(json.dumps(summary))
    if slowed is None:  # it is not there to learn much
        check_rise(summary, model, task)


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
