"""All checks, in the order in which a person would look."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from echo_node.doctor import (
    accelerator,
    bootstrap,
    clock,
    disk,
    engine,
    fit,
    folder,
    hub,
    identity,
    limits,
    memory,
    port,
    rates,
    reach,
    software,
    speed,
)
from echo_node.doctor.findings import Finding
from echo_node.doctor.situation import Check, Question, Situation
from echo_p2p.errors import ConfigError

CHECKS: tuple[Check, ...] = tuple(
    module.CHECK
    for module in (
        software, identity, folder, disk, memory, accelerator, engine, speed, limits, bootstrap,
        port, hub, clock, reach, rates, fit,
    )
)  # fmt: skip


def chosen(names: Sequence[str]) -> tuple[Check, ...]:
    """The checks with these names, or all; ConfigError for a name that is none."""
    known = {check.name: check for check in CHECKS}
    for name in names:
        if name not in known:
            raise ConfigError(f"there is no check {name!r}.", fix=f"There are: {', '.join(known)}.")
    return tuple(known[name] for name in names) if names else CHECKS


async def examine(question: Question, checks: Sequence[Check]) -> AsyncIterator[list[Finding]]:
    """The findings of each check, as it ends."""
    situation = Situation(question)
    for check in checks:
        yield await check.run(situation)
