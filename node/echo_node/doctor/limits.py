"""The limits in force: what is set otherwise than by default, or what is wrong with their file."""

from __future__ import annotations

from echo_node.doctor.findings import Finding
from echo_node.doctor.situation import Check, Situation
from echo_node.limits.book import Book
from echo_p2p.errors import ConfigError

NAME = "limits"


def judge(book: Book | ConfigError) -> list[Finding]:
    if isinstance(book, ConfigError):
        fix = book.fix or "Correct that line, or move the file away to have the defaults."
        return [Finding(check=NAME, severity="error", said=book.message, fix=fix)]
    changed = [f"{one.name} = {one.value}" for one in book.entries() if one.source != "default"]
    said = f"{', '.join(changed)}; the others by default." if changed else "all by default."
    return [Finding(check=NAME, severity="ok", said=said)]


async def _run(situation: Situation) -> list[Finding]:
    return judge(situation.book())


CHECK = Check(NAME, "Limits", _run)
