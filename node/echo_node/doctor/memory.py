"""The machine's memory: what there is, and what is unused."""

from __future__ import annotations

from echo_node.doctor.findings import Finding
from echo_node.doctor.situation import Check, Situation
from echo_node.hardware.base import GIB, Machine, size

NAME = "memory"
LEAST = 3 * GIB // 2
"""Node and engine with the smallest models; what a model needs beyond is said by `fit`."""


def judge(machine: Machine) -> list[Finding]:
    said = f"{size(machine.ram_free)} of {size(machine.ram)} unused."
    if machine.ram_free >= LEAST:
        return [Finding(check=NAME, severity="ok", said=said)]
    return [
        Finding(
            check=NAME,
            severity="error" if machine.ram < LEAST else "warning",
            said=f"{said} A node and its engine need {size(LEAST)} at least.",
            fix="Close programs that use much memory, a browser for example.",
        )
    ]


async def _run(situation: Situation) -> list[Finding]:
    return judge(await situation.machine())


CHECK = Check(NAME, "Memory", _run)
