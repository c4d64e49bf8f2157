"""The rates to and from the hub, and what they mean for the first download."""

from __future__ import annotations

from dataclasses import dataclass

from echo_node.doctor.findings import Finding
from echo_node.doctor.situation import Check, Situation
from echo_node.limits.amounts import format_duration, format_size

NAME = "rates"
SLOW = 32_000.0
"""Bytes a second under which answers and versions come late."""


@dataclass(frozen=True)
class Facts:
    """Bytes a second, None if not measured; bytes of the base model, None if not known."""

    up: float | None
    down: float | None
    base: int | None = None


def judge(facts: Facts | None) -> list[Finding]:
    """None: not measured."""
    if facts is None or facts.up is None or facts.down is None:
        said = "not measured: the hub was not reached, or does not measure."
        return [Finding(check=NAME, severity="note", said=said)]
    said = f"{format_size(facts.down)}/s from the hub, {format_size(facts.up)}/s to it"
    if facts.base is not None:
        seconds = format_duration(facts.base / facts.down)
        said += f"; the base model ({format_size(facts.base)}) alone takes {seconds} from there"
    if min(facts.up, facts.down) >= SLOW:
        return [Finding(check=NAME, severity="ok", said=f"{said}.")]
    return [
        Finding(
            check=NAME,
            severity="warning",
            said=f"{said}.",
            fix="Is something else using the line? A cable is faster than wireless.",
        )
    ]


async def _run(situation: Situation) -> list[Finding]:
    way = await situation.way()
    if way is None:
        return judge(None)
    base = None if way.base is None else way.base.layout.total_bytes
    return judge(Facts(way.up, way.down, base))


CHECK = Check(NAME, "Rates", _run)
