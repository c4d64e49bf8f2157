"""Disk space: enough for the model and two of its versions, beside what is left to others."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from echo_node.doctor.findings import Finding
from echo_node.doctor.situation import Check, Situation
from echo_node.limits.amounts import parse_size
from echo_node.limits.book import Book

NAME = "disk"
ROOM = 1 << 30
"""Bytes for versions and logs beside the base model."""


@dataclass(frozen=True)
class Facts:
    """Bytes free on the folder's disk; kept free for others; of the base, None if not known."""

    root: Path
    free: int
    left_free: int
    base: int | None = None
    have_base: bool = False


def judge(facts: Facts) -> list[Finding]:
    usable = facts.free - facts.left_free
    need = ROOM + (0 if facts.base is None or facts.have_base else facts.base)
    said = f"{facts.free / 1e9:.1f} GB free for {facts.root}"
    if usable >= need:
        return [Finding(check=NAME, severity="ok", said=f"{said}.")]
    model = "" if facts.base is None else f" (the base model is {facts.base / 1e9:.1f} GB)"
    return [
        Finding(
            check=NAME,
            severity="error" if facts.free < need else "warning",
            said=f"{said}, {facts.left_free / 1e9:.1f} GB of it kept for others; "
            f"{need / 1e9:.1f} GB are needed{model}.",
            fix=f"Free {max(0, need - usable) / 1e9:.1f} GB, or name a folder on another disk with "
            "--data-dir, or lower the limit disk_left_free.",
        )
    ]


async def _run(situation: Situation) -> list[Finding]:
    root = situation.question.folder.root
    place = root
    while not place.exists() and place != place.parent:
        place = place.parent
    book, way = situation.book(), await situation.way()
    left_free = parse_size(book.limits.disk_left_free) if isinstance(book, Book) else 0
    base = None if way is None else way.base
    complete = base is not None and (root / "store/complete" / base.id.hex()).is_dir()
    size = None if base is None else base.layout.total_bytes
    return judge(Facts(root, shutil.disk_usage(place).free, left_free, size, complete))


CHECK = Check(NAME, "Disk", _run)
