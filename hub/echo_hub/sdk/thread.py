"""A hub in a thread of its own, with a trio loop of its own, and its nodes as child processes.

Promises: it starts when it is first needed and says at once what is wrong; while nothing trains,
nodes stay connected; when it is closed, or the process ends, all that it started has ended.
Everything that touches the hub runs in its thread (`call`); other threads get plain values.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import trio

from echo_hub.config import RunConfig
from echo_hub.local_nodes import run_node
from echo_hub.paths import RunFolder
from echo_hub.sdk.feed import Feed
from echo_hub.sdk.watch import Told, Wanted, watch
from echo_p2p.errors import EchoError, RunFailedError, lone_cause
from echo_p2p.nursery import open_nursery

if TYPE_CHECKING:
    from echo_hub.rollouts.evaluation import Evaluated
    from echo_hub.service import Hub

R = TypeVar("R")


@dataclass
class _Open:
    """What there is while the hub is open."""

    hub: Hub
    url: str | None
    token: trio.lowlevel.TrioToken
    nursery: trio.Nursery
    close: trio.Event


class HubThread:
    """Runs one hub from `start` to `close`."""

    def __init__(self, config: RunConfig, folder: RunFolder, *, nodes: int) -> None:
        self._config = config
        self._folder = folder
        self._nodes = nodes
        self._open: _Open | None = None
        self._error: BaseException | None = None
        self._ready = threading.Event()
        self._feed: Feed[Told] | None = None
        self._thread = threading.Thread(target=self._run, name="echo-hub", daemon=True)

    # --- from any thread ----------------------------------------------------------------------

    @property
    def running(self) -> bool:
        """Is the hub open?"""
        return self._thread.is_alive() and self._open is not None

    @property
    def url(self) -> str | None:
        """Where its dashboard is."""
        return None if self._open is None else self._open.url

    def start(self) -> None:
        """Open the hub; what prevents that is raised here."""
        self._thread.start()
        self._ready.wait()
        self._raise()

    def call(self, ask: Callable[[Hub], R]) -> R:
        """What `ask` finds, run in the hub's thread."""
        opened = self._opened()
        return trio.from_thread.run_sync(partial(ask, opened.hub), trio_token=opened.token)

    def train(self, until: int, wanted: Wanted) -> tuple[Feed[Told], Callable[[], None]]:
        """Train up to version `until`. What happens, and what ends it after the update in hand."""
        opened = self._opened()
        feed: Feed[Told] = Feed()
        stop = trio.Event()
        self._feed = feed

        def begin() -> None:
            opened.nursery.start_soon(self._train, opened.hub, until, stop, feed, wanted)

        def end() -> None:
            with suppress(trio.RunFinishedError):
                opened.token.run_sync_soon(stop.set)

        trio.from_thread.run_sync(begin, trio_token=opened.token)
        return feed, end

    def evaluate(self, prompts: int) -> Evaluated | None:
        """Reward of the newest published version on held-out prompts, by the nodes."""
        opened = self._opened()

        async def work() -> Evaluated | None:
            latest = opened.hub.publisher.latest
            assert latest is not None
            return await opened.hub.front.evaluate(latest.version, prompts)

        return trio.from_thread.run(work, trio_token=opened.token)

    def close(self) -> None:
        """End the hub and its nodes, and wait until all has ended. The state stays on disk."""
        opened = self._open
        if opened is not None:
            with suppress(trio.RunFinishedError):
                opened.token.run_sync_soon(opened.close.set)
        if self._thread.is_alive():
            self._thread.join()

    def _opened(self) -> _Open:
        self._raise()
        if self._open is None or not self._thread.is_alive():
            raise RunFailedError("the hub is closed.", fix="Make another Hub of the same folder.")
        return self._open

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    # --- in the hub's thread ------------------------------------------------------------------

    def _run(self) -> None:
        try:
            trio.run(self._main)
        except BaseExceptionGroup as group:
            self._error = lone_cause(group) or group
        except BaseException as error:  # noqa: BLE001 - raised again in whoever waits or asks
            self._error = error
        finally:
            self._open = None
            self._ready.set()
            if self._feed is not None:
                self._feed.end(self._error)

    async def _main(self) -> None:
        from echo_hub.api.open import serve_api
        from echo_hub.service import open_hub
        from echo_hub.trackers.follow import tracking

        async with (
            open_hub(self._config, self._folder) as hub,
            serve_api(hub, self._folder) as url,
            tracking(hub, self._folder),
            open_nursery() as nursery,
        ):
            for number in range(self._nodes):
                nursery.start_soon(self._node, number)
            token, close = trio.lowlevel.current_trio_token(), trio.Event()
            self._open = _Open(hub, url, token, nursery, close)
            self._ready.set()
            await close.wait()
            nursery.cancel_scope.cancel()

    async def _node(self, number: int) -> None:
        code = await run_node(self._folder, number, lambda _: None)
        log = self._folder.root / f"node-{number}.log"
        raise RunFailedError(
            f"node {number} ended by itself, with exit code {code}.", fix=f"Its words are in {log}."
        )

    async def _train(
        self, hub: Hub, until: int, stop: trio.Event, feed: Feed[Told], wanted: Wanted
    ) -> None:
        try:
            async with watch(hub, feed, wanted, self._folder) as paused, open_nursery() as nursery:

                async def pause() -> None:
                    await paused.wait()
                    stop.set()

                nursery.start_soon(pause)
                await hub.loop.run(stop, until=until)
                nursery.cancel_scope.cancel()
        except EchoError as error:
            feed.end(error)
            raise
        why = hub.loop.guarding.pause
        if why is None:
            feed.end()
        else:
            feed.end(
                RunFailedError(
                    f"the run is paused since version {why.version}: {why.why}",
                    fix="Find the cause (docs/operator.md), then hub.resume() and train on.",
                )
            )
