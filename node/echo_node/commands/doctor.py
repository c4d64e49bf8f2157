"""`echo-node doctor`: run the checks, show what they find, and end with a code by severity."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import msgspec
import trio
from rich.console import Console
from rich.table import Table
from rich.text import Text

from echo_node.doctor.findings import EXIT_CODES, Finding, worst
from echo_node.doctor.run import chosen, examine
from echo_node.doctor.situation import Check, Question

_MARKS = {
    "ok": ("ok", "green"),
    "note": ("note", "cyan"),
    "warning": ("warning", "yellow"),
    "error": ("ERROR", "bold red"),
}


def doctor(question: Question, names: Sequence[str], *, json_wanted: bool) -> int:
    """Examine, print, and return the exit code."""
    checks = chosen(names)
    found = trio.run(_examine, question, checks, not json_wanted)
    if json_wanted:
        print(as_json(found))
    else:
        _show(found, checks)
    return EXIT_CODES[worst(found)]


def as_json(found: Sequence[Finding]) -> str:
    """One object: the worst severity, the exit code, and every finding."""
    severity = worst(found)
    whole = {"severity": severity, "exit_code": EXIT_CODES[severity], "findings": list(found)}
    return msgspec.json.format(msgspec.json.encode(whole), indent=2).decode()


async def _examine(question: Question, checks: Sequence[Check], told: bool) -> list[Finding]:
    found: list[Finding] = []
    console = Console(stderr=True)
    waiting = console.status("looking ...") if told and console.is_terminal else None
    if waiting is not None:
        waiting.start()
    try:
        number = 0
        async for some in examine(question, checks):
            found += some
            number += 1
            if waiting is not None and number < len(checks):
                waiting.update(f"{checks[number].title.lower()} ...")
    finally:
        if waiting is not None:
            waiting.stop()
    return found


def _show(found: Sequence[Finding], checks: Sequence[Check]) -> None:
    console = Console()
    titles = {check.name: check.title for check in checks}
    if console.is_terminal:
        console.print(_table(found, titles))
    else:
        for one in found:
            fix = f" {one.fix}" if one.fix else ""
            print(f"{one.severity:7} {one.check}: {one.said}{fix}")
    print(_sentence(found), file=sys.stdout)


def _table(found: Sequence[Finding], titles: dict[str, str]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    last = ""
    for one in found:
        word, style = _MARKS[one.severity]
        said = Text(one.said)
        if one.fix:
            said.append(f"\n{one.fix}", style="bold")
        title = "" if one.check == last else titles[one.check]
        table.add_row(Text(word, style=style), title, said)
        last = one.check
    return table


def _sentence(found: Sequence[Finding]) -> str:
    match worst(found):
        case "error":
            return "Something keeps this computer from joining; see above for what to do."
        case "warning":
            return "This computer can join; something may hinder it."
        case _:
            return "All is well."
