"""The hub: at each of its addresses, how far one gets and which step fails."""

from __future__ import annotations

from echo_node.doctor.findings import Finding, Severity
from echo_node.doctor.situation import Check, Situation
from echo_p2p.bootstrap import is_loopback
from echo_p2p.net.addresses import parse
from echo_p2p.net.probe import Probe, Step
from echo_p2p.upgrade import upgrade_command

NAME = "hub"

_PORTAL = (
    "A log-in page of this network is probably in the way: open a browser, log in, and try again."
)
_FIXES = {
    Step.NAME: "Does a web site open in your browser? If so, the name may be gone: ask the run's "
    "operator for a newer bootstrap file. If not, this computer is not online.",
    Step.CONNECTION: "Are you online? If so, the hub is down, or a firewall is in between: ask the "
    "run's operator whether the hub is running, and try another network.",
    Step.GREETING: "Another program has the hub's port, or something in between answers in its "
    "place: try another network, and ask the run's operator.",
    Step.NOISE: "The hub has another key than your bootstrap file says, so it is not trusted: ask "
    "the run's operator for a newer file.",
    Step.RUN: "The hub no longer serves this run: ask its operator for a newer bootstrap file.",
}


def judge(probes: list[Probe] | None, *, upgrade: str) -> list[Finding]:
    """None: it was not looked at."""
    if probes is None:
        said = "not looked at: there is no bootstrap file, or --offline was asked for."
        return [Finding(check=NAME, severity="note", said=said)]
    some = any(one.failed is None for one in probes)
    return [_judge_one(one, upgrade, "note" if some else "error") for one in probes]


def _judge_one(one: Probe, upgrade: str, severity: Severity) -> Finding:
    place = parse(one.address).place
    if one.failed is None:
        said = f"{place} answers, {one.seconds:.2f} s for the whole way."
        return Finding(check=NAME, severity="ok", said=said)
    if one.web:
        fix = _PORTAL
    elif one.failed is Step.CONNECTION and is_loopback(one.address):
        fix = "The hub of this file runs on your own computer: start it (make demo), or name the "
        fix += "file of a real network with --bootstrap."
    elif one.failed is Step.PROTOCOL:
        fix = f"One of the two programs is too old. Upgrade yours: {upgrade}"
    else:
        fix = _FIXES[one.failed]
    cause = one.cause.rstrip(".")
    said = f"{place} fails at the step {one.failed}: {cause}."
    return Finding(check=NAME, severity=severity, said=said, fix=fix)


async def _run(situation: Situation) -> list[Finding]:
    way = await situation.way()
    return judge(None if way is None else way.probes, upgrade=upgrade_command())


CHECK = Check(NAME, "Hub", _run)
