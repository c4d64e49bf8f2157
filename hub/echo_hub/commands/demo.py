"""`echo-hub demo`: a hub in this process and real `echo-node` processes beside it, on loopback.

Nothing is simulated: the nodes know a bootstrap file and start with empty folders; the base model
reaches them through the network. Nodes that are to cheat are programs too (`echo_node.cheat`), on
the same protocol, and the hub is not told which they are. The folder is temporary unless it is
asked to be kept.
"""

from __future__ import annotations

import logging
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import trio
from rich.console import Console
from rich.table import Table

from echo_hub.commands.live import save_picture, show_progress
from echo_hub.commands.presets import MODELS, SMALL_BASES, Model, preset
from echo_hub.commands.setup_run import write_bootstrap
from echo_hub.commands.template import render_config
from echo_hub.commands.throttled import Throttle, measured, throttled
from echo_hub.local_nodes import JOIN, free_ports, on_loopback, run_node
from echo_hub.paths import RunFolder
from echo_hub.publish.spread import sentence_of, summary_of
from echo_p2p.errors import ConfigError, RunFailedError, StoppedError
from echo_p2p.identity import Identity, peer_id_of
from echo_p2p.nursery import open_nursery

if TYPE_CHECKING:
    from echo_hub.config import RunConfig
    from echo_hub.rollouts.evaluation import Evaluated
    from echo_hub.service import Hub

RISE_WANTED: dict[str, float] = {"addmix3": 0.3, "smollm2": 0.1}
DEFAULT_UPDATES: dict[str, int] = {"addmix3": 30, "smollm2": 24}
for _name in SMALL_BASES:
    RISE_WANTED[_name], DEFAULT_UPDATES[_name] = 0.15, 24
_WHOLE = {"learning_rate": 1e-4, "rate_coupling": 0.0}  # an adapter's rate is larger
_NODE_GOODBYE_S = 20.0
_WAYS_TO_CHEAT = ("edited", "hand-written", "greedy", "stale", "reseeded")
_HONEST_AT_FIRST = 64  # answers, by which a cheat earns some standing


@dataclass(frozen=True)
class DemoOptions:
    nodes: int = 3
    cheaters: int = 0
    updates: int = 0
    mode: str = "async"
    staleness: int | None = None
    """None: the preset's."""
    seed: int = 0
    model: str = "addmix3"
    adapter: str = "lora"
    """`none` trains all weights."""
    task: str | None = None
    """`task.name`; None: the preset's."""
    throttle: Throttle | None = None
    """Nodes and learner of a speed to order."""
    keep: Path | None = None
    picture: Path | None = None


@dataclass
class NodeTally:
    """What one node said of itself: its peer id, and what was in its last summary line."""

    cheats: str | None = None
    peer_id: str = ""
    bytes_from_hub: int = 0
    bytes_from_peers: int = 0
    bytes_saved: int = 0
    events: list[dict[str, Any]] = field(default_factory=list)


def run_demo(options: DemoOptions, *, live: bool) -> dict[str, Any]:
    """Run it; returns the summary that docs/operator.md describes."""
    if options.model not in MODELS:
        raise ConfigError(f"there is no model {options.model!r}: choose from {', '.join(MODELS)}.")
    if options.mode not in ("async", "sequential"):
        raise ConfigError(f"mode {options.mode!r}: choose async or sequential.")
    if options.mode == "sequential" and options.staleness:
        raise ConfigError(
            f"a staleness of {options.staleness} in sequential mode, which has none.",
            fix="Leave out --staleness, or use --mode async.",
        )
    if options.cheaters >= options.nodes:
        raise ConfigError(
            f"{options.cheaters} of {options.nodes} nodes would cheat.",
            fix="Leave at least one honest: --nodes is the number of all of them.",
        )
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(name)s: %(message)s")
    with _run_folder(options.keep) as folder:
        make_base_of(options.model, folder)
        summary = trio.run(_until_stopped, options, folder, live)
    if live:
        _print_summary(summary)
    return summary


def check_rise(summary: dict[str, Any], model: str, task: str | None = None) -> None:
    """RunFailedError if the held-out reward did not rise as it must; of another task, at all."""
    wanted = RISE_WANTED[model] if task is None else 0.01
    rise = summary["reward_after"] - summary["reward_before"]
    if rise < wanted:
        raise RunFailedError(
            f"held-out reward went from {summary['reward_before']:.3f} to "
            f"{summary['reward_after']:.3f} in {summary['updates']} updates: a rise of {rise:.3f}, "
            f"and {wanted} is wanted.",
            fix=f"Were {DEFAULT_UPDATES[model]} updates asked for, the usual number? If so, run it "
            "again with --keep FOLDER and look at the logs in it.",
        )


@contextmanager
def _run_folder(keep: Path | None) -> Iterator[RunFolder]:
    if keep is not None:
        try:
            keep.mkdir(parents=True, exist_ok=True)
            empty = not any(keep.iterdir())
        except OSError as error:
            raise ConfigError(f"cannot use {keep} as a folder: {error.strerror}.") from error
        if not empty:
            raise ConfigError(f"{keep} is not empty.", fix="Name a folder that does not exist yet.")
        yield RunFolder(keep.absolute())
        return
    root = Path(tempfile.mkdtemp(prefix="echo-p2p-demo-"))
    try:
        yield RunFolder(root)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _configure(options: DemoOptions, folder: RunFolder, ports: tuple[int, int]) -> RunConfig:
    overrides: dict[str, dict[str, Any]] = {
        "run": {
            "id": "demo",
            "mode": options.mode,
            "seed": options.seed,
            "updates": options.updates or DEFAULT_UPDATES[options.model],
        },
        "learner": {
            "adapter": options.adapter,
            **({} if options.adapter == "lora" else _WHOLE),
            **({} if options.staleness is None else {"staleness": options.staleness}),
        },
        "network": on_loopback(ports),
    }
    if options.throttle is not None:
        throttled(overrides, options.throttle)
    if options.task is not None:
        overrides["task"] = {"name": options.task}
    if options.model != "addmix3":
        overrides["base"] = {"path": str(base_of(options.model, folder))}
    return preset(cast(Model, options.model), run_id="demo", overrides=overrides)


def base_of(model: str, folder: RunFolder) -> Path:
    """Where the base of a model that is not packaged lies."""
    return folder.smollm2 if model == "smollm2" else folder.small_base


def make_base_of(model: str, folder: RunFolder) -> None:
    """What is not packaged: converted or brought up here, which takes a minute or several."""
    if model == "smollm2":
        from echo_hub.models.smollm2 import make_smollm2

        make_smollm2(folder.smollm2)
    elif model in SMALL_BASES:
        from echo_hub.models.make_base import make_base

        make_base(model, folder.small_base)


async def _until_stopped(options: DemoOptions, folder: RunFolder, live: bool) -> dict[str, Any]:
    """The demo, ended with all its processes by Ctrl-C or SIGTERM."""
    summary: dict[str, Any] | None = None
    async with open_nursery() as nursery:

        async def watch() -> None:
            with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
                async for _ in signals:
                    nursery.cancel_scope.cancel()

        nursery.start_soon(watch)
        summary = await _demo(options, folder, live)
        nursery.cancel_scope.cancel()
    if summary is None:
        raise StoppedError("the demo was stopped before its end.")
    return summary


def _print_summary(summary: dict[str, Any]) -> None:
    table = Table(title="what was just seen", title_justify="left", show_header=False, box=None)
    for key, value in summary.items():
        text = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else value
        table.add_row(key.replace("_", " "), str(text) or "none")
    console = Console()
    console.print(table)
    spread = {
        "latest": None,
        "last_s_median": summary["last_node_s"],
        "peer_share": summary["peer_share"],
    }
    console.print(sentence_of(spread), highlight=False)


async def _demo(options: DemoOptions, folder: RunFolder, live: bool) -> dict[str, Any]:
    from echo_hub.service import open_hub

    started = time.monotonic()
    ports = free_ports()
    config = _configure(options, folder, ports)
    identity = Identity.create()
    identity.save(folder.identity)
    folder.config.write_text(render_config(config), encoding="utf-8")
    write_bootstrap(folder, config, hub_id=identity.peer_id, hosts=(), port=ports[0])
    tallies = [
        NodeTally(_WAYS_TO_CHEAT[number % len(_WAYS_TO_CHEAT)])
        if number < options.cheaters
        else NodeTally()
        for number in range(options.nodes)
    ]
    async with open_hub(config, folder) as hub, open_nursery() as nodes:
        if options.throttle is not None:
            hub.learner.least_update_s = options.throttle.train_s
        for number, tally in enumerate(tallies):
            nodes.start_soon(_node, folder, number, tally, options.throttle)
        join = shlex.join(["echo-node", "join", "--bootstrap", str(folder.bootstrap)])
        print(f"Join from another terminal: {join}", file=sys.stderr)
        async with show_progress(hub, live=live), open_nursery() as watch:
            watch.start_soon(_fail_if_paused, hub)
            await hub.run(trio.Event())
            watch.cancel_scope.cancel()
        if options.picture is not None:
            save_picture(hub, options.picture)
        await hub.goodbye()
        nodes.cancel_scope.deadline = trio.current_time() + _NODE_GOODBYE_S
    summary = _summary(hub, tallies, time.monotonic() - started)
    if options.throttle is not None:
        summary |= measured(options.throttle, hub)
    return summary


async def _fail_if_paused(hub: Hub) -> None:
    """Nobody is there to let a demo go on."""
    while hub.loop.guarding.pause is None:
        await hub.loop.changed()
    raise RunFailedError(f"the demo's run paused: {hub.loop.guarding.pause.why}")


async def _node(
    folder: RunFolder, number: int, tally: NodeTally, throttle: Throttle | None
) -> None:
    """One `echo-node join` process, or one that cheats or is slowed down; its events are read."""
    program: Sequence[str] = JOIN if throttle is None else throttle.program(number)
    if tally.cheats:
        program = ("echo_node.cheat", tally.cheats, "--honest", str(_HONEST_AT_FIRST))
    await run_node(folder, number, partial(_note, tally), program=program)


def _note(tally: NodeTally, event: dict[str, Any]) -> None:
    tally.events.append(event)
    if event.get("event") == "joined":
        tally.peer_id = event["node"]
    if event.get("event") == "summary":
        tally.bytes_from_hub = event["bytes_from_hub"]
        tally.bytes_from_peers = event["bytes_from_peers"]
        tally.bytes_saved = event["bytes_saved"]


def _interval(found: Evaluated) -> list[float]:
    return [round(found.all.low, 4), round(found.all.high, 4)]


def _summary(hub: Hub, tallies: list[NodeTally], wall_s: float) -> dict[str, Any]:
    snapshot = hub.front.snapshot()
    evaluations = hub.loop.evaluations
    banned = {peer_id_of(key) for key in snapshot.banned}
    cheaters = {tally.peer_id for tally in tallies if tally.cheats}
    spread = summary_of(hub.dissemination.spreads.all())
    shares = hub.loop.shares
    return {
        "reward_before": round(evaluations[0], 4),
        "reward_after": round(evaluations[hub.loop.version], 4),
        "interval_before": _interval(hub.loop.evaluated[0]),
        "interval_after": _interval(hub.loop.evaluated[hub.loop.version]),
        "updates": hub.loop.version,
        "rollouts_accepted": snapshot.rollouts_accepted,
        "rollouts_rejected": dict(snapshot.rollouts_rejected),
        "cheaters_banned": len(banned & cheaters),
        "nodes_banned": len(banned),
        "max_lag": max(snapshot.lag_histogram, default=0),
        "bytes_from_hub": sum(tally.bytes_from_hub for tally in tallies),
        "bytes_from_peers": sum(tally.bytes_from_peers for tally in tallies),
        "bytes_saved_by_deltas": sum(tally.bytes_saved for tally in tallies),
        "peer_share": spread["peer_share"],
        "last_node_s": spread["last_s_median"],
        "learner_idle_fraction": round(shares.waiting, 4),
        "learner_audit_fraction": round(shares.auditing, 4),
        "wall_s": round(wall_s, 1),
    }
