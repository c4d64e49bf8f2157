"""This program's release, and the hub's: do they speak with each other?"""

from __future__ import annotations

import platform
from dataclasses import dataclass

from echo_node.doctor.findings import Finding
from echo_node.doctor.situation import Check, Situation
from echo_p2p import __version__
from echo_p2p.errors import VersionError
from echo_p2p.upgrade import upgrade_command
from echo_p2p.versions import negotiate
from echo_p2p.wire import Versions

NAME = "software"


@dataclass(frozen=True)
class Facts:
    """`hub`: what the hub says it speaks, None if it was not asked. `refused`: by the file."""

    release: str
    python: str
    upgrade: str
    hub: Versions | None = None
    refused: VersionError | None = None


def judge(facts: Facts) -> list[Finding]:
    error = facts.refused
    spoken = ""
    if facts.hub is not None:
        try:
            protocol = negotiate(facts.hub, upgrade=facts.upgrade)
            spoken = f"; with the hub it speaks protocol {protocol}"
        except VersionError as found:
            error = found
    if error is not None:
        return [Finding(check=NAME, severity="error", said=error.message, fix=error.fix)]
    said = f"echo-p2p {facts.release} on Python {facts.python}{spoken}."
    return [Finding(check=NAME, severity="ok", said=said)]


async def _run(situation: Situation) -> list[Finding]:
    error = (await situation.network()).error
    way = await situation.way()
    facts = Facts(
        release=__version__,
        python=platform.python_version(),
        upgrade=upgrade_command(),
        hub=None if way is None else way.versions,
        refused=error if isinstance(error, VersionError) else None,
    )
    return judge(facts)


CHECK = Check(NAME, "Software", _run)
