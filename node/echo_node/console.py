"""Showing a node's events: a live line on a terminal, plain lines elsewhere, or JSON.

Promise: whatever happens to the output, the node goes on.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.status import Status

from echo_node.events import (
    Engine,
    Event,
    Fetched,
    Joined,
    Note,
    Progress,
    Step,
    Summary,
    Tally,
    Trouble,
    Verdict,
    Version,
)
from echo_p2p.rates import UNLIMITED

Report = Callable[[Event], None]

_FETCH_EVERY_S = 0.5
_WORTH_SHOWING_S = 1.0  # shorter downloads only flicker
_PLAIN_PROGRESS_EVERY_S = 30.0


@contextmanager
def open_console(*, json_lines: bool) -> Iterator[Report]:
    """Where events go for the length of the block."""
    console = Console(stderr=not json_lines)
    if json_lines:
        yield _sparing(_JsonLines(sys.stdout))
    elif console.is_terminal:
        with console.status("starting") as status:
            yield _sparing(_Live(console, status))
    else:
        yield _sparing(_PlainLines(console))


def _sparing(report: Report) -> Report:
    """Pass on `Fetched` only now and then, and at the end of a download."""
    last = -_FETCH_EVERY_S

    def spare(event: Event) -> None:
        nonlocal last
        if isinstance(event, Fetched) and _under_way(event):
            if time.monotonic() < last + _FETCH_EVERY_S:
                return
            last = time.monotonic()
        report(event)

    return spare


class _JsonLines:
    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._reader_gone = False

    def __call__(self, event: Event) -> None:
        if self._reader_gone:
            return
        try:
            print(msgspec.json.encode(event).decode(), file=self._out, flush=True)
        except BrokenPipeError:
            self._reader_gone = True


class _PlainLines:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._next_progress = 0.0
        self._next_fetched = 0.0

    def __call__(self, event: Event) -> None:
        now = time.monotonic()
        match event:
            case Version():
                return
            case Progress():
                if now < self._next_progress:
                    return
                self._next_progress = now + _PLAIN_PROGRESS_EVERY_S
            case Fetched():
                if not _worth_showing(event) or (now < self._next_fetched and _under_way(event)):
                    return
                self._next_fetched = now + _PLAIN_PROGRESS_EVERY_S
        line = f"{time.strftime('%H:%M:%S')} {describe(event)}"
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def _worth_showing(event: Fetched) -> bool:
    return event.elapsed_s >= _WORTH_SHOWING_S


def _under_way(event: Fetched) -> bool:
    return event.done_bytes < event.total_bytes


class _Live:
    """What is lasting scrolls by; what changes is in a line at the bottom, a download below it."""

    def __init__(self, console: Console, status: Status) -> None:
        self._console = console
        self._status = status
        self._doing = ""
        self._download = ""

    def __call__(self, event: Event) -> None:
        text = escape(describe(event))
        match event:
            case Step() | Progress():
                self._show(doing=text)
            case Fetched():
                shown = _under_way(event) and _worth_showing(event)
                self._show(download=text if shown else "")
            case Version():
                self._show(download="")  # one that a newer version made needless may be there
            case Trouble() | Verdict():
                self._console.print(f"[yellow]{text}[/]", highlight=False)
                if isinstance(event, Trouble) and event.retry_s is not None:
                    self._show(doing="waiting for the hub ...", download="")
            case Summary():
                self._status.stop()
                self._console.print(f"[bold]{text}[/]", highlight=False)
            case _:
                self._console.print(text, highlight=False)

    def _show(self, *, doing: str | None = None, download: str | None = None) -> None:
        self._doing = self._doing if doing is None else doing
        self._download = self._download if download is None else download
        self._status.update("\n  ".join(filter(None, (self._doing, self._download))))


def describe(event: Event) -> str:
    """An event as a sentence."""
    match event:
        case Step():
            return f"{event.step} ..."
        case Joined():
            return f"Joined run {event.run} ({event.task}) as {event.node}.{_limits(event)}"
        case Engine():
            return f"Engine: {event.name} on {event.device}, {event.dtype}."
        case Fetched():
            return _download(event)
        case Version():
            return f"version {event.version} is active"
        case Progress():
            version = "none" if event.version is None else str(event.version)
            return (
                f"version {version} | {event.rollouts_per_s:.1f} rollouts/s, "
                f"{event.tokens_per_s:.0f} tokens/s | {_counts(event)}"
            )
        case Trouble():
            again = "" if event.retry_s is None else f" Trying again in {event.retry_s:.0f} s."
            return event.message + again
        case Verdict():
            return f"A group is not used after all ({event.code}): {event.message}"
        case Note():
            return event.message
        case Summary():
            thanks = "The run is complete. Thank you! " if event.reason == "complete" else ""
            return f"{thanks}{event.wall_s:.0f} s: {_counts(event)}{_limits(event)}"
    raise AssertionError(event)


def _limits(event: Joined | Summary) -> str:
    """The limits in force, if there are any."""
    if event.max_upload == event.max_download == UNLIMITED:
        return ""
    return f" Limits: upload {event.max_upload}, download {event.max_download}."


def _download(event: Fetched) -> str:
    came = event.from_hub_bytes + event.from_peers_bytes
    source = f"{event.from_peers_bytes / came:.0%} from nodes" if came else "nothing came yet"
    if event.resumed_bytes:
        source += f"; resumed, {_size(event.resumed_bytes)} were here already"
    total = _size(event.total_bytes)
    if not _under_way(event):
        return f"fetched {event.what}: {total} in {event.elapsed_s:.1f} s, {source}"
    left = "" if event.left_s is None else f", {event.left_s:.0f} s left"
    share = event.done_bytes / max(1, event.total_bytes)
    rate = f"{_size(event.bytes_per_s)}/s"
    return f"fetching {event.what}: {share:.0%} of {total}, {rate}{left}, {source}"


def _counts(tally: Tally) -> str:
    saved = f" (deltas saved {_size(tally.bytes_saved)})" if tally.bytes_saved else ""
    refused = ", ".join(f"{code} {count}" for code, count in sorted(tally.rejected.items()))
    unsent = f", {tally.unsent} to hand in" if tally.unsent else ""
    return (
        f"{tally.accepted} groups accepted, rejected: {refused or 'none'}{unsent} | "
        f"received {_size(tally.bytes_from_hub)} from the hub, "
        f"{_size(tally.bytes_from_peers)} from nodes{saved}; sent {_size(tally.bytes_sent)}"
    )


def _size(count: int) -> str:
    power = min(4, max(0, (len(str(count)) - 1) // 3))
    value = count / 1000**power
    digits = 0 if power == 0 or value >= 100 else 1
    return f"{value:.{digits}f} {('B', 'kB', 'MB', 'GB', 'TB')[power]}"
