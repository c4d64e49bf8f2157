"""Showing a node's events: a live screen on a terminal, plain lines elsewhere, or JSON.

Promise: whatever happens to the output, the node goes on.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TextIO

import msgspec
from rich.console import Console

from echo_node.events import (
    Credited,
    Engine,
    Event,
    Fetched,
    Joined,
    Note,
    OffStandby,
    Paused,
    Planned,
    Progress,
    Resumed,
    Standby,
    Step,
    Still,
    Summary,
    Tally,
    Trouble,
    Verdict,
    Version,
)
from echo_node.screen.live import open_screen
from echo_node.snapshot import Snapshot
from echo_node.words import clean
from echo_p2p.rates import UNLIMITED

Report = Callable[[Event], None]

_FETCH_EVERY_S = 0.5
_WORTH_SHOWING_S = 1.0  # shorter downloads only flicker
_PLAIN_PROGRESS_EVERY_S = 30.0
_PLAIN_STILL_EVERY_S = 10.0


@dataclass(frozen=True)
class Shown:
    """Call it with each event; `screen`, if there is one, with how the node stands."""

    report: Report
    screen: Callable[[Snapshot], None] | None = None

    def __call__(self, event: Event) -> None:
        self.report(event)


@contextmanager
def open_console(*, json_lines: bool, plain: bool = False) -> Iterator[Shown]:
    """Where events go for the length of the block: a live screen on a terminal, else lines."""
    console = Console(stderr=not json_lines)
    if json_lines:
        yield Shown(_sparing(_JsonLines(sys.stdout)))
    elif console.is_terminal and not console.is_dumb_terminal and not plain:
        with open_screen(console, describe, _is_shown) as screen:
            yield Shown(_sparing(screen), screen.show)
    else:
        yield Shown(_sparing(_PlainLines(console)))


def _is_shown(event: Fetched) -> bool:
    return _under_way(event) and _worth_showing(event)


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
        self._next_still = 0.0

    def __call__(self, event: Event) -> None:
        now = time.monotonic()
        match event:
            case Version() | Credited():
                return
            case Progress():
                if now < self._next_progress:
                    return
                self._next_progress = now + _PLAIN_PROGRESS_EVERY_S
            case Still():
                if now < self._next_still:
                    return
                self._next_still = now + _PLAIN_STILL_EVERY_S
            case Step():
                self._next_still = now + _PLAIN_STILL_EVERY_S
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


def describe(event: Event) -> str:
    """An event as a sentence. Some of its words may have come over the network: none of them is a
    control character."""
    return clean(_describe(event))


def _describe(event: Event) -> str:
    match event:
        case Step():
            return f"{event.step} ..."
        case Still():
            return f"{event.step}, for {event.elapsed_s:.0f} s ..."
        case Joined():
            return f"Joined run {event.run} ({event.task}) as {event.node}.{_limits(event)}"
        case Planned():
            return event.sentence
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
                f"{event.tokens_per_s:.0f} tokens/s{_running(event)} | {_counts(event)}"
            )
        case Trouble():
            again = "" if event.retry_s is None else f" Trying again in {event.retry_s:.0f} s."
            more = f" Why: echo-node doctor {event.check}" if event.check else ""
            return event.message + again + more
        case Verdict():
            return f"A group is not used after all ({event.code}): {event.message}"
        case Note():
            return event.message
        case Credited():
            name = f" in the name of {event.name}" if event.name else ""
            return f"Credit: {event.tokens:,} tokens, {event.rollouts:,} rollouts{name}."
        case Paused():
            until = "" if event.until is None else f" until {clock_time(event.until)}"
            return f"Paused{until}: {event.message}."
        case Resumed():
            return "Working again."
        case Standby():
            until = "" if event.until is None else f" until about {clock_time(event.until)}"
            return f"On standby{until}: {event.message}."
        case OffStandby():
            return "Off standby: there is work again."
        case Summary():
            thanks = "The run is complete. Thank you! " if event.reason == "complete" else ""
            return f"{thanks}{event.wall_s:.0f} s: {_counts(event)}{_limits(event)}"
    raise AssertionError(event)


def clock_time(moment: float) -> str:
    """Of a moment within a day the time, else the date too; on this computer's clock."""
    far = abs(moment - time.time()) > 20 * 3600
    return time.strftime("%a %d %b %H:%M" if far else "%H:%M", time.localtime(moment))


def _running(event: Progress) -> str:
    """What is being generated, if anything is."""
    if not event.running:
        return ""
    answers = "1 answer" if event.running == 1 else f"{event.running} answers"
    return f", {answers} under way with {event.running_tokens} tokens"


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
