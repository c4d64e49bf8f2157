"""May the node work now? One gate, which whatever works or fetches stands behind."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from echo_node.notice import Notice
from echo_p2p.nursery import open_nursery

T = TypeVar("T")


class Gate:
    """Open, until it is closed; `notice` is told of both."""

    def __init__(self, notice: Notice) -> None:
        self.is_open = True
        self._notice = notice

    def set(self, *, is_open: bool) -> None:
        self.is_open = is_open
        self._notice.tell()

    async def passed(self) -> None:
        """Return once it is open."""
        await self._notice.until(lambda: self.is_open)

    async def behind(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do `work` while it is open. Closing cancels it, opening begins it anew."""
        while True:
            await self.passed()
            results: list[T] = []
            async with open_nursery() as nursery:
                nursery.start_soon(self._cancel_when_closed, nursery.cancel_scope)
                results.append(await work())
                nursery.cancel_scope.cancel()
            if results:
                return results[0]

    async def _cancel_when_closed(self, scope: trio.CancelScope) -> None:
        await self._notice.until(lambda: not self.is_open)
        scope.cancel()
