"""The live screen on a terminal, while a node runs; afterwards the terminal is as before."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live

from echo_node.events import Credited, Event, Fetched, Progress, Step, Still, Summary
from echo_node.screen.draw import Screen
from echo_node.snapshot import LogLine, Snapshot

MOST_LINES = 200


class LiveScreen:
    """Call it with each event, and `show` with each snapshot.

    Args:
        describe: an event as a sentence.
        worth_showing: whether a download is to be shown.
    """

    def __init__(
        self,
        live: Live,
        describe: Callable[[Event], str],
        worth_showing: Callable[[Fetched], bool],
    ) -> None:
        self._live = live
        self._describe = describe
        self._worth_showing = worth_showing
        self._lines: deque[LogLine] = deque(maxlen=MOST_LINES)
        self._snapshot: Snapshot | None = None
        self._under_way = ""
        self.last_words = ""

    def __call__(self, event: Event) -> None:
        text = self._describe(event)
        match event:
            case Progress() | Credited():
                return
            case Fetched():
                self._under_way = text if self._worth_showing(event) else ""
            case Still():
                self._under_way = text
            case Step():
                self._under_way = ""
                self.add("step", text)
            case Summary():
                self.last_words = text
            case _:
                self.add(type(event).__name__.lower(), text)
        self._refresh()

    def show(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._refresh()

    def add(self, kind: str, text: str) -> None:
        """One more line."""
        self._lines.append(LogLine(number=0, at=time.time(), event=kind, text=text))

    def _refresh(self) -> None:
        screen = Screen(self._snapshot, self._under_way, tuple(self._lines))
        self._live.update(screen, refresh=True)


class _ToScreen(logging.Handler):
    """Warnings would tear the screen: they are lines in it."""

    def __init__(self, screen: LiveScreen) -> None:
        super().__init__()
        self._screen = screen

    def emit(self, record: logging.LogRecord) -> None:
        self._screen.add(record.levelname.lower(), record.getMessage())


@contextmanager
def open_screen(
    console: Console,
    describe: Callable[[Event], str],
    worth_showing: Callable[[Fetched], bool],
) -> Iterator[LiveScreen]:
    """The screen for the length of a block; then what the node said last."""
    root = logging.getLogger()
    handlers = root.handlers[:]
    live = Live(Screen(None), console=console, screen=True, auto_refresh=False)
    screen = LiveScreen(live, describe, worth_showing)
    root.handlers[:] = [_ToScreen(screen)]
    try:
        with live:
            yield screen
    finally:
        root.handlers[:] = handlers
        if screen.last_words:
            console.print(screen.last_words, markup=False, highlight=False)
