"""`echo-node bench`: how many tokens a second this machine samples, measured once and kept."""

from __future__ import annotations

import hashlib
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from echo_node.cli_support import ConfigFile, DataDir, Json, errors_as_exit_codes, set_up_logging

if TYPE_CHECKING:
    from echo_node.fit import Plan
    from echo_node.limits.book import Book
    from echo_node.paths import NodeFolder
    from echo_node.speeds import Speed


@dataclass(frozen=True)
class Request:
    """What was asked. `base`: a snapshot folder; None is the newest base that the node has."""

    folder: NodeFolder
    book: Book
    base: Path | None
    engine: str
    max_sequences: int | None
    prompt: int
    new_tokens: int
    again: bool


def register(app: typer.Typer) -> None:
    """Add it to the command."""
    app.command()(bench)


def bench(
    model: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FOLDER]",
            help="A base model: config.json and safetensors.",
            show_default="the newest one that this node has fetched",
        ),
    ] = None,
    engine: Annotated[str, typer.Option(help="auto, torch, vllm or mlx.")] = "auto",
    max_sequences: Annotated[
        int | None, typer.Option(min=1, help="Answers at a time.", show_default="as planned")
    ] = None,
    prompt: Annotated[int, typer.Option(min=1, help="Tokens of each prompt.")] = 32,
    new_tokens: Annotated[int, typer.Option(min=1, help="Tokens of each answer.")] = 64,
    again: Annotated[bool, typer.Option(help="Measure also what was measured before.")] = False,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Measure how fast this computer generates; kept for each model, engine, card and driver.

    Exit code 0, or 8 or 9 if the engine cannot work here: it says why; 17 while a node works here.
    """
    set_up_logging("error")
    with errors_as_exit_codes():
        import msgspec
        import trio

        from echo_node.engines.choice import check_name
        from echo_node.limits.book import Book
        from echo_node.paths import config_file, node_folder

        check_name(engine)
        request = Request(
            folder=node_folder(data_dir),
            book=Book.read(config_file(config), required=config is not None),
            base=model,
            engine=engine,
            max_sequences=max_sequences,
            prompt=prompt,
            new_tokens=new_tokens,
            again=again,
        )
        speed = trio.run(_speed, request)
        typer.echo(msgspec.json.encode(speed).decode() if as_json else speed.sentence)


async def _speed(request: Request) -> Speed:
    from echo_node import software
    from echo_node.fit import Misfit, Wishes, plan
    from echo_node.hardware.look import look
    from echo_node.limits.wishes import wishes_for
    from echo_node.shapes import read_shape
    from echo_node.speeds import Speed, find, keep, read_speeds, subject_of
    from echo_p2p.errors import FitError

    base = request.base or _newest_base(request.folder)
    machine, limits = look(), request.book.limits
    wishes = Wishes(
        context=request.prompt + request.new_tokens,
        engine=request.engine,
        max_sequences=request.max_sequences,
    )
    made = plan(read_shape(base), wishes_for(limits, machine, wishes), machine, software.look())
    if isinstance(made, Misfit):
        raise FitError(f"{base} does not fit: {made.sentence}", fix=made.fix)
    threads = limits.threads(os.cpu_count() or 1)
    subject = subject_of(
        made,
        machine,
        model=_name(base),
        release=software.version_of(made.engine),
        threads=threads,
        lengths=(request.prompt, request.new_tokens),
    )
    known = find(read_speeds(request.folder.speeds), subject)
    if known is None or request.again:
        rate = await _measured(request, base, made, threads)
        known = Speed(subject=subject, tokens_s=rate, measured_at=time.time())
        keep(request.folder.speeds, known)
    return known


async def _measured(request: Request, base: Path, made: Plan, threads: int) -> float:
    from echo_node.control.lock import refuse_running
    from echo_node.engines.remote import open_engine
    from echo_node.engines.trial import tokens_per_second
    from echo_node.planner import resources_of

    refuse_running(request.folder)  # the two would slow each other
    async with open_engine(
        threads=threads,
        max_sequences=made.max_sequences,
        log_path=request.folder.engine_log,
        engine=made.engine,
    ) as engine:
        engine.use(
            max_sequences=made.max_sequences, engine=made.engine, resources=resources_of(made)
        )
        _, rate = await tokens_per_second(
            engine, base, dtype=made.dtype, prompt=request.prompt, new_tokens=request.new_tokens
        )
    return rate


def _newest_base(folder: NodeFolder) -> Path:
    from echo_p2p.artifact.store import Store
    from echo_p2p.errors import ConfigError

    if folder.store.is_dir():
        with Store(folder.store, cap_bytes=None) as store:
            bases = [one for one in store.complete() if one.manifest.kind == "base"]
            path = store.path(bases[-1].id) if bases else None
        if path is not None:
            return path
    raise ConfigError(
        "this node has fetched no base model yet.",
        fix="Name a folder with one: echo-node bench FOLDER.",
    )


def _name(base: Path) -> str:
    """A base by its config and the sizes of its weights: all that its speed follows from."""
    named = hashlib.sha256((base / "config.json").read_bytes())
    for file in sorted(base.glob("*.safetensors")):
        named.update(f"{file.name} {file.stat().st_size}\n".encode())
    return named.hexdigest()[:16]
