"""The port to listen on: an address of this machine that no other program has."""

from __future__ import annotations

from echo_node.doctor.findings import Finding
from echo_node.doctor.situation import Check, Situation
from echo_p2p.errors import EchoError
from echo_p2p.net.addresses import check_free

NAME = "port"
_FIX = "Leave --listen out, or name another port."


def judge(failures: dict[str, EchoError | None]) -> list[Finding]:
    """By the addresses that were asked for."""
    return [
        Finding(check=NAME, severity="ok", said=f"{address} can be listened on.")
        if error is None
        else Finding(check=NAME, severity="error", said=error.message, fix=error.fix or _FIX)
        for address, error in failures.items()
    ]


def gather(listen: tuple[str, ...]) -> dict[str, EchoError | None]:
    """Try each; nothing stays open."""
    found: dict[str, EchoError | None] = {}
    for address in listen:
        try:
            check_free(address)
            found[address] = None
        except EchoError as error:
            found[address] = error
    return found


async def _run(situation: Situation) -> list[Finding]:
    return judge(gather(situation.question.listen))


CHECK = Check(NAME, "Port", _run)
