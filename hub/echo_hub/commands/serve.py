"""`echo-hub serve`: runs a hub until its run is complete or somebody stops it.

The first SIGINT or SIGTERM finishes the update in hand, publishes and exits 0; a second ends at
once with 130 (nothing acknowledged is lost either way).
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import trio

from echo_hub import logs
from echo_hub.commands.live import show_progress
from echo_hub.config import RunConfig, load_config
from echo_hub.paths import RunFolder
from echo_p2p.nursery import open_nursery

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def serve_run(config_path: Path, *, json_lines: bool) -> None:
    """Serve the run of this `run.toml`; its folder holds the rest."""
    config = load_config(config_path)
    logs.configure(config.logs)
    trio.run(_serve, config, RunFolder(config_path.absolute().parent), json_lines)


async def _serve(config: RunConfig, folder: RunFolder, json_lines: bool) -> None:
    from echo_hub.api.open import serve_api
    from echo_hub.service import open_hub
    from echo_hub.trackers.follow import tracking

    stop = trio.Event()
    async with open_nursery() as nursery:
        await nursery.start(_watch_signals, stop)
        async with (
            open_hub(config, folder) as hub,
            serve_api(hub, folder) as url,
            tracking(hub, folder),
            show_progress(hub, json_lines=json_lines, dashboard=url),
        ):
            await hub.run(stop)
            if not stop.is_set():
                await hub.goodbye()
        nursery.cancel_scope.cancel()


async def _watch_signals(stop: trio.Event, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
    with trio.open_signal_receiver(*_SIGNALS) as signals:
        task_status.started()
        async for _ in signals:
            if stop.is_set():
                os._exit(130)
            stop.set()
