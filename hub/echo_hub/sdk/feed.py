"""From a hub's thread to whoever reads, in a plain script, under asyncio (a notebook), or trio.

Promises: items come out in the order in which they were put in; whatever ended the feed is raised
after the last of them; waiting blocks no event loop, and Ctrl-C ends it.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

import sniffio
import trio

T = TypeVar("T")


class Feed(Generic[T]):
    """One reader, many writers. An iterator, and an asynchronous one."""

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._changed = threading.Condition()
        self._wake: Callable[[], object] | None = None
        self._ended = False
        self._error: BaseException | None = None

    def put(self, item: T) -> None:
        """Pass an item on; after the end it is dropped."""
        with self._changed:
            if not self._ended:
                self._items.append(item)
                self._tell()

    def end(self, error: BaseException | None = None) -> None:
        """Nothing comes any more; the reader is given the error after the last item."""
        with self._changed:
            if not self._ended:
                self._ended, self._error = True, error
                self._tell()

    def _tell(self) -> None:
        self._changed.notify_all()
        if self._wake is not None:
            wake, self._wake = self._wake, None
            wake()

    def wait(self, seconds: float) -> bool:
        """Wait for the next item or the end, but no longer than this; is there one?"""
        with self._changed:
            return self._changed.wait_for(lambda: bool(self._items) or self._ended, seconds)

    def __iter__(self) -> Feed[T]:
        return self

    def __next__(self) -> T:
        with self._changed:
            while not (self._items or self._ended):
                self._changed.wait()
            return self._take(StopIteration())

    def __aiter__(self) -> Feed[T]:
        return self

    async def __anext__(self) -> T:
        while True:
            event, wake = _alarm()
            with self._changed:
                if self._items or self._ended:
                    return self._take(StopAsyncIteration())
                self._wake = wake
            await event.wait()

    def _take(self, end: Exception) -> T:
        if self._items:
            return self._items.popleft()
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        raise end


def _alarm() -> tuple[asyncio.Event | trio.Event, Callable[[], object]]:
    """An event of the caller's own loop, and what sets it from another thread."""
    if sniffio.current_async_library() == "trio":
        bell = trio.Event()
        token = trio.lowlevel.current_trio_token()
        return bell, lambda: token.run_sync_soon(bell.set)
    loop, event = asyncio.get_running_loop(), asyncio.Event()
    return event, lambda: loop.call_soon_threadsafe(event.set)
