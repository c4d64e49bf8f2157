"""What a node has said so far: its last lines, and what the newest event of each kind was.

It stands between the node and whoever shows events, and passes all of them on.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from echo_node.console import describe
from echo_node.events import Credited, Event, Fetched, Paused, Progress, Step, Still, Trouble
from echo_node.snapshot import LogLine

MOST_LINES = 1000
LONG_S = 1.0
WORKING = "working"
"""The step that is no wait."""
_PASSING = (
    Progress,
    Fetched,
    Credited,
    Still,
)  # they come every few seconds; `status` says where they stand

E = TypeVar("E", bound=Event)


class Chronicle:
    """Call it with each event."""

    def __init__(self, report: Callable[[Event], None]) -> None:
        self._report = report
        self._lines: deque[LogLine] = deque(maxlen=MOST_LINES)
        self._newest: dict[type[Event], Event] = {}
        self._count = 0
        self.started_at = time.time()
        self._waits: tuple[str, float] | None = None

    def __call__(self, event: Event) -> None:
        self._newest[type(event)] = event
        if isinstance(event, Step):
            self._waits = None if event.step == WORKING else (event.step, time.monotonic())
        elif isinstance(event, Trouble | Paused | Fetched):  # they say themselves how long
            self._waits = None
        if not isinstance(event, _PASSING):
            kind = type(event).__name__.lower()
            line = LogLine(number=self._count, at=time.time(), event=kind, text=describe(event))
            self._lines.append(line)
            self._count += 1
        self._report(event)

    def still(self) -> Still | None:
        """What is waited for now, unless it only began."""
        if self._waits is None:
            return None
        step, began = self._waits
        elapsed_s = time.monotonic() - began
        return Still(step=step, elapsed_s=round(elapsed_s, 1)) if elapsed_s >= LONG_S else None

    def newest(self, kind: type[E]) -> E | None:
        """The last event of a kind."""
        event = self._newest.get(kind)
        return event if isinstance(event, kind) else None

    def lines(self, *, after: int = -1, most: int = MOST_LINES) -> list[LogLine]:
        """The last `most` of those with a number above `after`."""
        return [line for line in self._lines if line.number > after][-most:]
