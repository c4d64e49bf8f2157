"""Events for everybody who watches: kept for a while, each with a number, so that a lost connection
goes on where it was.

Promises: a watcher costs the hub a place in a queue that all share, whatever it does; one that
falls behind that queue is let go, and asks again. Of `LATEST` kinds only the newest is kept.
Numbers rise over restarts of the hub, as long as its clock does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass

import trio

KEPT = 2000
PING_S = 5.0
BATCH_S = 0.1
LATEST = ("overview", "alerts")


@dataclass(frozen=True)
class _Frame:
    number: int
    bytes: bytes


def frame(kind: str, data: bytes, number: int | None = None) -> bytes:
    """One server-sent event; `data` is JSON in one line."""
    head = b"" if number is None else b"id: %d\n" % number
    return head + b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n"


class Feed:
    """The events of a hub. `first` is the number before the first event."""

    def __init__(self, first: int) -> None:
        self._number = first
        self._frames: deque[_Frame] = deque(maxlen=KEPT)
        self._latest: dict[str, tuple[int, bytes]] = {}
        self._turn = 0
        self._news = trio.Event()
        self.watchers = 0

    def post(self, kind: str, data: bytes) -> None:
        """Something happened."""
        if kind in LATEST:
            self._turn += 1
            self._latest[kind] = (self._turn, frame(kind, data))
        else:
            self._number += 1
            self._frames.append(_Frame(self._number, frame(kind, data, self._number)))
        self._news.set()
        self._news = trio.Event()

    async def watch(self, after: int | None) -> AsyncIterator[bytes]:
        """Server-sent events from now on, or from behind the number `after`; ends if the watcher is
        too slow. A first event `reset` says that some were missed."""
        self.watchers += 1
        try:
            seen, turn = self._number if after is None else after, 0
            if after is not None and self._missed(after):
                yield frame("reset", b"{}", self._number)
                seen = self._number
            else:
                yield frame("ping", b"{}", seen)
            while not self._missed(seen):
                news = self._news
                sent = [one for one in self._frames if one.number > seen]
                latest = [one for at, one in sorted(self._latest.values()) if at > turn]
                turn = self._turn
                if sent:
                    seen = sent[-1].number
                if sent or latest:
                    yield b"".join([*(one.bytes for one in sent), *latest])
                    await trio.sleep(BATCH_S)
                    continue
                with trio.move_on_after(PING_S) as quiet:
                    await news.wait()
                if quiet.cancelled_caught:
                    yield frame("ping", b"{}")
        finally:
            self.watchers -= 1

    def _missed(self, seen: int) -> bool:
        """Are events gone that come after `seen`, or was it never a number here?"""
        if seen > self._number:
            return True
        oldest = self._frames[0].number if self._frames else self._number + 1
        return seen < oldest - 1
