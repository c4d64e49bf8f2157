"""The live screen, drawn for whatever size the terminal has now.

Promises: never more lines than the terminal has, none longer than it is wide; when there is little
room the last facts go first, and the state with its reason goes last; nothing that came from the
network reaches the terminal as a control character.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from echo_node.screen.facts import facts, headline, time_of
from echo_node.snapshot import LogLine, Snapshot

LABEL = 9
LEAST_EVENTS = 3
KEYS = "Ctrl-C hands in what runs and ends. Elsewhere: echo-node pause | limits | leave"
_STATE_STYLES = {
    "paused": "bold yellow",
    "away": "bold yellow",
    "standby": "bold cyan",
    "working": "bold green",
}
_EVENT_STYLES = {"trouble": "yellow", "verdict": "yellow", "warning": "yellow"}


@dataclass(frozen=True)
class Screen:
    """What is shown: how the node stands, a download under way ("" if none), its last lines."""

    snapshot: Snapshot | None
    download: str = ""
    lines: Sequence[LogLine] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width, height = options.max_width, options.height or console.height
        yield Text("\n").join(self.draw(console, width, height))

    def draw(self, console: Console, width: int, height: int) -> list[Text]:
        """The lines, at most `height`, each at most `width` cells."""
        top = self._top(console, width)
        middle = self._facts(console, width)
        room = max(0, height - len(top) - 2 - LEAST_EVENTS)
        middle = middle[:room]
        bottom = height - len(top) - len(middle) - 2
        events = self._events(console, width, bottom) if bottom > 0 else []
        rule = Text("-- last events ".ljust(width, "-")[:width], style="dim")
        gap = [Text()] * max(0, bottom - len(events))
        lines = [*top, *middle, rule, *events, *gap, _cropped(KEYS, width, "dim")]
        return lines[:height]

    def _top(self, console: Console, width: int) -> list[Text]:
        if self.snapshot is None:
            return [_cropped("echo-p2p: starting ...", width, "bold")]
        style = _STATE_STYLES.get(self.snapshot.state, "bold")
        return list(Text(headline(self.snapshot), style=style).wrap(console, width))

    def _facts(self, console: Console, width: int) -> list[Text]:
        rows = [] if self.snapshot is None else facts(self.snapshot)
        if self.download:
            rows.insert(3, ("download", self.download))
        lines = []
        for label, value in rows:
            head = Text(f"{label:<{LABEL}}", style="cyan")
            wrapped = Text(value).wrap(console, max(10, width - LABEL))
            for number, part in enumerate(wrapped):
                line = head + part if number == 0 else Text(" " * LABEL) + part
                line.truncate(width)
                lines.append(line)
        return lines

    def _events(self, console: Console, width: int, most: int) -> list[Text]:
        """The newest at the bottom, whole lines as far as there is room."""
        shown: list[Text] = []
        for line in reversed(self.lines):
            style = _EVENT_STYLES.get(line.event, "")
            text = Text(f"{time_of(line.at)} {line.text}", style=style)
            wrapped = list(text.wrap(console, width))
            if len(shown) + len(wrapped) > most:
                break
            shown = wrapped + shown
        return shown


def _cropped(text: str, width: int, style: str) -> Text:
    line = Text(text, style=style)
    line.truncate(width)
    return line
