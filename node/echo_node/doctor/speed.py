"""How fast this machine generates, as far as `echo-node bench` has measured it."""

from __future__ import annotations

from collections.abc import Sequence

from echo_node.doctor.findings import Finding
from echo_node.doctor.situation import Check, Situation
from echo_node.hardware.base import Machine
from echo_node.speeds import Speed, read_speeds

NAME = "speed"
MOST_SHOWN = 3


def judge(speeds: Sequence[Speed], machine: Machine) -> list[Finding]:
    """The newest results that hold for this machine as it is now."""
    drivers = {card.driver for card in machine.accelerators} | {" ".join(machine.cpu.vectors)}
    still = [one for one in speeds if one.subject.driver in drivers]
    if not still:
        said = "not measured here yet: `echo-node bench` does."
        return [Finding(check=NAME, severity="note", said=said)]
    return [
        Finding(check=NAME, severity="ok", said=one.sentence)
        for one in reversed(still[-MOST_SHOWN:])
    ]


async def _run(situation: Situation) -> list[Finding]:
    return judge(read_speeds(situation.question.folder.speeds), await situation.machine())


CHECK = Check(NAME, "Speed", _run)
