"""The clock, against the hub's: work goes by the hub's, certificates and dates by this one."""

from __future__ import annotations

import sys

from echo_node.clock import WORTH_SAYING_S, fix_for, offset_in_words
from echo_node.doctor.findings import Finding
from echo_node.doctor.situation import Check, Situation

NAME = "clock"


def judge(offset_s: float | None, *, system: str = sys.platform) -> list[Finding]:
    """`offset_s`: by how much the hub's clock is ahead; None if the hub was not reached."""
    if offset_s is None:
        said = "not compared: the hub was not reached."
        return [Finding(check=NAME, severity="note", said=said)]
    said = f"this computer's clock is {offset_in_words(offset_s)}."
    if abs(offset_s) < WORTH_SAYING_S:
        return [Finding(check=NAME, severity="ok", said=said)]
    return [Finding(check=NAME, severity="warning", said=said, fix=fix_for(system))]


async def _run(situation: Situation) -> list[Finding]:
    way = await situation.way()
    known = way is not None and way.answer is not None
    return judge(way.answer.clock_offset_s if known else None)  # type: ignore[union-attr]


CHECK = Check(NAME, "Clock", _run)
