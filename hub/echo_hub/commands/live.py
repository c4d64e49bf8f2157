"""What a person, or a program, sees of a run while it is served.

On a terminal: one screen, redrawn (version, reward, how versions spread, lags, accepted and
rejected, each node's rate). Elsewhere: one line a version. With `json_lines`: one JSON object a
line, for programs.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from echo_hub.commands.status import sentence_of_task
from echo_hub.guarding import RESUME
from echo_hub.publish.spread import sentence_of, summary_of
from echo_hub.rollouts.curriculum import latest
from echo_p2p.identity import peer_id_of
from echo_p2p.nursery import open_nursery

if TYPE_CHECKING:
    from echo_hub.rollouts.evaluation import Evaluated
    from echo_hub.rollouts.front import FrontSnapshot
    from echo_hub.service import Hub
    from echo_hub.update_facts import UpdateFacts

REDRAW_S = 0.5
_LOOK_BACK = 10  # updates
_SHOWN = 2  # evaluations beside the first
_BARS = " ▁▂▃▄▅▆▇█"


@asynccontextmanager
async def show_progress(
    hub: Hub, *, live: bool = True, json_lines: bool = False, dashboard: str | None = None
) -> AsyncIterator[None]:
    """Show a hub's progress for the length of the block; `dashboard` is where its page is."""
    console = Console(stderr=not json_lines)
    async with open_nursery() as nursery:
        if json_lines:
            nursery.start_soon(_json_lines, hub, dashboard)
            nursery.start_soon(_json_lines_of_versions, hub)
        elif live and console.is_terminal:
            nursery.start_soon(_screen, hub, console, dashboard)
        else:
            nursery.start_soon(_plain_lines, hub, console, dashboard)
        yield
        await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    if live and console.is_terminal and not json_lines:
        console.print(draw(hub, time.monotonic()))


async def _screen(hub: Hub, console: Console, dashboard: str | None) -> None:
    if dashboard is not None:
        console.print(f"dashboard: {dashboard}", markup=False, highlight=False)
    with Live(console=console, auto_refresh=False, transient=True) as screen:
        while True:
            screen.update(draw(hub, time.monotonic()), refresh=True)
            await trio.sleep(REDRAW_S)


async def _plain_lines(hub: Hub, console: Console, dashboard: str | None) -> None:
    def say(line: str) -> None:
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    say(f"serving run {hub.config.run.id} at version {hub.loop.version}, waiting for nodes, on")
    for address in hub.peer.addresses:
        say(f"  {address}")
    if dashboard is not None:
        say(f"dashboard: {dashboard}")
    seen, noticed, told = 0, 0, set(hub.loop.evaluations)
    while True:
        for facts in hub.loop.history[seen:]:
            seen += 1
            say(plain_line(facts, hub.front.snapshot()))
        for version in sorted(set(hub.loop.evaluations) - told):
            told.add(version)
            say(f"version {version}: held-out reward {_in_words(hub.loop.evaluated[version])}")
        for notice in hub.loop.guarding.notices[noticed:]:
            noticed += 1
            say(f"{notice.kind.replace('_', ' ')}: {notice.sentence}")
        await hub.loop.changed()


def _emit(event: str, **facts: Any) -> None:
    print(json.dumps({"event": event, **facts}), flush=True)


async def _json_lines_of_versions(hub: Hub) -> None:
    async for spread in hub.dissemination.finished:
        _emit("disseminated", **spread.as_dict())


async def _json_lines(hub: Hub, dashboard: str | None) -> None:
    _emit(
        "serving",
        run=hub.config.run.id,
        peer_id=hub.peer.peer_id,
        addresses=hub.peer.addresses,
        version=hub.loop.version,
        max_upload=hub.config.network.max_upload,
        dashboard=dashboard,
    )
    seen, noticed, evaluated, doing = 0, 0, set(hub.loop.evaluations), ""
    while True:
        if hub.loop.doing != doing:
            doing = hub.loop.doing
            _emit("learner", doing=doing, version=hub.loop.version)
        for facts in hub.loop.history[seen:]:
            seen += 1
            _emit("update", **facts.as_dict())
        for version in sorted(set(hub.loop.evaluations) - evaluated):
            evaluated.add(version)
            _emit("evaluation", **hub.loop.evaluated[version].as_dict())
        for notice in hub.loop.guarding.notices[noticed:]:
            noticed += 1
            _emit(notice.kind, **notice.facts)
        await hub.loop.changed()


def save_picture(hub: Hub, path: Path) -> None:
    """The screen as it is now, as an SVG file."""
    console = Console(record=True, width=96, file=io.StringIO())
    console.print(draw(hub, time.monotonic()))
    console.save_svg(str(path), title="echo-hub demo")


def plain_line(facts: UpdateFacts, snapshot: FrontSnapshot) -> str:
    """One update in one line."""
    return (
        f"version {facts.version}: reward {facts.reward:.3f}, lag {facts.lag_mean:.1f} "
        f"(max {facts.lag_max}), update {facts.train_s:.2f} s, waited {facts.waited_s:.2f} s, "
        f"{snapshot.rollouts_accepted} rollouts accepted, "
        f"{sum(snapshot.rollouts_rejected.values())} rejected"
    )


def sparkline(values: list[float], width: int) -> str:
    """The last `width` values in [0, 1] as one line of bars."""
    top = len(_BARS) - 1
    return "".join(_BARS[round(min(1.0, max(0.0, v)) * top)] for v in values[-width:])


def draw(hub: Hub, now: float) -> RenderableType:
    """The whole screen."""
    snapshot = hub.front.snapshot()
    return Panel(
        Group(
            _head(hub, now),
            _spread(hub),
            _lags(snapshot),
            _counts(snapshot),
            *_tasks(hub),
            _nodes(snapshot),
        ),
        title=f"echo-hub · {hub.config.run.id} · {hub.config.run.mode}",
        title_align="left",
    )


def _head(hub: Hub, now: float) -> RenderableType:
    loop = hub.loop
    table = Table.grid(padding=(0, 2))
    total = hub.config.run.updates
    version = f"{loop.version}" + (f" of {total}" if total else "")
    bar: RenderableType = (
        ProgressBar(total=total, completed=loop.version, width=30) if total else ""
    )
    table.add_row("version", version, bar)
    rewards = [facts.reward for facts in loop.history]
    latest = f"{rewards[-1]:.3f}" if rewards else "-"
    table.add_row("reward", latest, sparkline(rewards, 40))
    evaluated = sorted(loop.evaluated.values(), key=lambda one: one.version)
    held_out = [f"v{one.version} {one.all}" for one in evaluated]
    table.add_row("held out", held_out[0] if held_out else "-", "  ".join(held_out[1:][-_SHOWN:]))
    shares = loop.shares
    table.add_row(
        "learner",
        f"waits {shares.waiting:.0%}",
        f"trains {shares.training:.0%}, audits {shares.auditing:.0%}; {loop.state(now)}",
    )
    guarding = loop.guarding
    if guarding.pause is not None:
        why = Text(f"{guarding.pause.why} {RESUME}", style="bold red")
        table.add_row("paused", f"at v{guarding.pause.version}", why)
    elif guarding.notices:
        table.add_row("guard", guarding.notices[-1].kind, Text(guarding.notices[-1].sentence))
    return table


def _in_words(found: Evaluated) -> str:
    """An evaluation in a line: of all prompts, and of each task's where there are several."""
    tasks = "".join(f", {name} {one}" for name, one in found.tasks.items())
    return f"{found.all} of {found.all.prompts} prompts{tasks if len(found.tasks) > 1 else ''}"


def _spread(hub: Hub) -> RenderableType:
    return Text("sent        " + sentence_of(summary_of(hub.dissemination.spreads.all())))


def _lags(snapshot: FrontSnapshot) -> RenderableType:
    histogram = snapshot.lag_histogram
    total = sum(histogram.values()) or 1
    parts = [f"{lag}: {count / total:.0%}" for lag, count in sorted(histogram.items())]
    return Text("lag         " + ("   ".join(parts) or "-"))


def _counts(snapshot: FrontSnapshot) -> RenderableType:
    rejected = ", ".join(f"{code} {n}" for code, n in sorted(snapshot.rollouts_rejected.items()))
    return Text(
        f"rollouts    {snapshot.rollouts_accepted} accepted, rejected: {rejected or 'none'}; "
        f"groups: {snapshot.buffered} buffered, {snapshot.running} running"
    )


def _tasks(hub: Hub) -> list[RenderableType]:
    """How each task fared in the last update that had groups of it; nothing if there is one."""
    if len(hub.config.all_tasks) == 1:
        return []
    found = latest(facts.tasks for facts in hub.loop.history[-_LOOK_BACK:])
    return [Text(f"{name[:11]:12}" + sentence_of_task(one)) for name, one in found.items()]


def _nodes(snapshot: FrontSnapshot) -> RenderableType:
    table = Table(box=None, padding=(0, 2))
    for name in ("node", "version", "rollouts/s", "accepted", "rejected", "valid", "audited"):
        table.add_column(name, justify="left" if name == "node" else "right")
    for node in snapshot.nodes:
        table.add_row(
            "…" + peer_id_of(node.key)[-8:],
            str(node.version),
            f"{node.rate:.1f}",
            str(node.accepted),
            str(node.rejected),
            f"{node.valid:.0f}",
            Text("banned", style="bold red") if node.banned else f"{node.audits:.0%}",
        )
    return table
