"""Through the hub's door: greeted in a protocol that both speak, or told why not.

Promise: what trying again does not change is raised as an error that ends the node, with what a
person can do about it; everything else stays a `NetError`.
"""

from __future__ import annotations

from collections.abc import Sequence

from echo_node.hub import Greeting, Hub
from echo_p2p import PROTOCOL
from echo_p2p.errors import (
    BannedError,
    BootstrapError,
    NetError,
    PeerRefusedError,
    UnreachableError,
    VersionError,
)
from echo_p2p.net.addresses import parse
from echo_p2p.net.probe import find_web
from echo_p2p.upgrade import upgrade_command
from echo_p2p.versions import negotiate

LOOK_S = 3.0
"""How long a hub that cannot be reached is looked at for a web page in its place."""
PORTAL_FIX = "Does this network want you to log in? Open a browser, log in, and the node goes on."


async def enter(hub: Hub, engine: str) -> Greeting:
    """Greet the hub, in an older protocol if it does not know our newest.

    Raises:
        VersionError: there is no protocol that both speak; names the release and the command.
        BannedError, BootstrapError: it does not want this node, or has no such run.
    """
    try:
        return await hub.hello(engine)
    except PeerRefusedError as error:
        if error.code == "banned":
            raise BannedError(
                error.message,
                fix="If that is a mistake, ask the run's operator to unban your peer id.",
            ) from error
        if error.code == "wrong_run":
            raise BootstrapError(
                error.message, fix="Ask the run's operator for the newest bootstrap file."
            ) from error
        if error.code != "wrong_protocol":
            raise
        return await hub.hello(engine, protocol=await _agree(hub, error))


async def _agree(hub: Hub, refused: PeerRefusedError) -> int:
    """The protocol to speak instead of our newest."""
    upgrade = upgrade_command()
    try:
        theirs = await hub.versions()
    except NetError:
        raise VersionError(
            refused.message,
            fix=f"Upgrade the older of the two. Yours: {upgrade}",
        ) from refused
    protocol = negotiate(theirs, upgrade=upgrade)
    if protocol == PROTOCOL:  # and this is what it has just refused
        raise VersionError(refused.message, fix="Ask the run's operator to look at the hub's log.")
    return protocol


async def why_unreachable(
    run_id: str, targets: Sequence[str], error: UnreachableError
) -> UnreachableError:
    """The same, for people: which addresses, and whether a log-in page is in between."""
    web = await find_web(targets, deadline_s=LOOK_S)
    if web:
        return UnreachableError(
            f"the hub of run {run_id} cannot be reached: at {parse(web).place} a web page answers "
            "in its place.",
            fix=PORTAL_FIX,
            tried=error.tried,
        )
    return UnreachableError(
        f"the hub of run {run_id} cannot be reached at {error.tried}.", tried=error.tried
    )
