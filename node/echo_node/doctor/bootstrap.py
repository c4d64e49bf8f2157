"""The bootstrap file: there, right, current, and with the run asked for."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from echo_node.doctor.findings import Finding
from echo_node.doctor.situation import Check, Network, Situation

NAME = "bootstrap"
SOON = timedelta(days=14)


def judge(network: Network, now: datetime) -> list[Finding]:
    if network.error is not None:
        fix = network.error.fix or "Ask the run's operator for the file again."
        return [Finding(check=NAME, severity="error", said=network.error.message, fix=fix)]
    if network.bootstrap is None or network.entry is None:
        said = "not looked at: it is on the network, and --offline was asked for."
        return [Finding(check=NAME, severity="note", said=said)]
    found = network.bootstrap
    said = f"run {network.entry.id} of {found.network}, {len(network.entry.addresses)} addresses."
    if found.expires is not None and found.expires - now < SOON:
        return [
            Finding(
                check=NAME,
                severity="warning",
                said=f"{said} The file expires on {found.expires:%d %B %Y}.",
                fix="Ask the run's operator for a newer file.",
            )
        ]
    return [Finding(check=NAME, severity="ok", said=said)]


async def _run(situation: Situation) -> list[Finding]:
    return judge(await situation.network(), datetime.now(UTC))


CHECK = Check(NAME, "Bootstrap file", _run)
