"""Hands a run's metrics to its trackers while it is served.

Promises: no tracker holds up the run or ends it, whatever it does; each gets every update from the
one it got last, also those that were made while it failed or the hub was down; versions rise.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from echo_hub.config import RunConfig
from echo_hub.ledger.metrics import read_metrics
from echo_hub.paths import RunFolder
from echo_hub.rollouts.curriculum import PREFIX
from echo_hub.trackers.kinds import check_installed
from echo_hub.trackers.process import Begin, Done, Log
from echo_p2p.errors import EchoError, ProcessError
from echo_p2p.nursery import open_nursery
from echo_p2p.pipes import Child, child_process

if TYPE_CHECKING:
    from echo_hub.rollouts.evaluation import Evaluated
    from echo_hub.service import Hub

log = logging.getLogger(__name__)

DEADLINE_S = 120.0
TRIES = 5
"""Failures in a row after which a tracker is given up until the hub is started again."""
_PAUSES_S = (1.0, 5.0, 30.0, 120.0)
_AT_ONCE = 200
_SECRET = {"dashboard", "alerts", "network"}
"""Sections that are nobody's business elsewhere."""


@asynccontextmanager
async def tracking(hub: Hub, folder: RunFolder) -> AsyncIterator[None]:
    """Keep the trackers of a run up to date for the length of the block.

    Raises:
        ConfigError: at the start, if the package of one is not installed.
    """
    names = hub.config.trackers.use
    for name in names:
        check_installed(name)
    ending = trio.Event()
    async with open_nursery() as nursery:
        for name in names:
            nursery.start_soon(_keep, hub, folder, name, ending)
        yield
        ending.set()
        nursery.cancel_scope.deadline = trio.current_time() + DEADLINE_S


def values_of(row: Mapping[str, float]) -> dict[str, float]:
    """What a tracker gets of an update: metrics under `learner/`, those of tasks under
    `tasks/<name>/`."""
    values = {}
    for key, value in row.items():
        if key.startswith(PREFIX):
            name, _, metric = key.removeprefix(PREFIX).rpartition(".")
            values[f"tasks/{name}/{metric}"] = float(value)
        elif key not in ("version", "at"):
            values[f"learner/{key}"] = float(value)
    return values


def heldout_of(found: Evaluated) -> dict[str, float]:
    """What it gets of an evaluation, under `heldout/`: the rewards, and of which version."""
    values = {f"heldout/tasks/{name}": one.reward for name, one in found.tasks.items()}
    return values | {"heldout/reward": found.all.reward, "heldout/version": float(found.version)}


async def _keep(hub: Hub, folder: RunFolder, name: str, ending: trio.Event) -> None:
    place = folder.trackers / name
    memory, failures = place / "last-version", 0
    told = set(hub.loop.evaluated) if _recall(memory) else set()
    while failures < TRIES:
        try:
            place.mkdir(parents=True, exist_ok=True)
            async with child_process("echo_hub.trackers.process", name=name) as child:
                await _say(child, _begin(hub.config, name, place))
                while True:
                    did = await _pass_on(hub, folder, child, memory, told)
                    failures = 0 if did else failures
                    if ending.is_set():
                        return
                    await _either(hub, ending)
        except (EchoError, OSError) as error:
            failures += 1
            log.warning("the tracker %s failed, and the run goes on: %s", name, error)
            with trio.move_on_after(_PAUSES_S[min(failures, len(_PAUSES_S)) - 1]):
                await ending.wait()
                return
    log.error("the tracker %s is given up after %d failures in a row.", name, failures)


def _begin(config: RunConfig, name: str, place: Path) -> Begin:
    return Begin(
        tracker=name,
        run=config.run.id,
        project=config.trackers.project,
        offline=config.trackers.offline,
        folder=str(place),
        settings=config.model_dump_json(exclude=_SECRET),
    )


async def _pass_on(hub: Hub, folder: RunFolder, child: Child, memory: Path, told: set[int]) -> bool:
    """Tell a tracker what it was not told yet; was there anything?"""
    last = _recall(memory)
    steps: list[tuple[int, dict[str, float]]] = []
    if last < hub.loop.version:
        rows = await trio.to_thread.run_sync(read_metrics, folder.ledger, last)
        steps = [(int(row["version"]), values_of(row)) for row in rows]
    newest = steps[-1][0] if steps else last
    evaluated = sorted(hub.loop.evaluated.keys() - told)  # they come after their versions
    steps += [(newest, heldout_of(hub.loop.evaluated[version])) for version in evaluated]
    for start in range(0, len(steps), _AT_ONCE):
        some = steps[start : start + _AT_ONCE]
        await _say(child, Log(steps=some))
        _remember(memory, some[-1][0])
    told |= set(evaluated)
    return bool(steps)


def _recall(memory: Path) -> int:
    with suppress(FileNotFoundError, ValueError):
        return int(memory.read_text(encoding="ascii"))
    return 0


def _remember(memory: Path, version: int) -> None:
    memory.write_text(f"{version}\n", encoding="ascii")


async def _say(child: Child, message: Begin | Log) -> None:
    done = await child.call(message, Done, deadline_s=DEADLINE_S)
    if done.failed:
        raise ProcessError(done.failed)


async def _either(hub: Hub, ending: trio.Event) -> None:
    """Until something changed, or it is the end."""
    async with open_nursery() as nursery:

        async def end() -> None:
            await ending.wait()
            nursery.cancel_scope.cancel()

        nursery.start_soon(end)
        await hub.loop.changed()
        nursery.cancel_scope.cancel()
