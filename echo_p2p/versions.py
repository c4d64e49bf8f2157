"""Which protocol two sides speak with each other. Pure."""

from __future__ import annotations

from collections.abc import Collection

from echo_p2p import SPOKEN, __version__
from echo_p2p.errors import VersionError
from echo_p2p.wire import Versions


def negotiate(
    theirs: Versions, *, upgrade: str, ours: Collection[int] = SPOKEN, release: str = __version__
) -> int:
    """The newest protocol that both speak.

    VersionError says which side is too old, which release is needed, and how to get it: `upgrade`
    is the command that does it here.
    """
    common = set(ours) & set(theirs.protocols)
    if common:
        return max(common)
    if max(theirs.protocols) > max(ours):
        raise VersionError(
            f"this program is too old: the hub needs echo-p2p {theirs.needs} or newer, and this "
            f"is {release}.",
            fix=f"Upgrade it: {upgrade}",
        )
    raise VersionError(
        f"this program (echo-p2p {release}) is newer than the hub: it speaks no protocol that "
        "the hub does.",
        fix="Ask the run's operator to upgrade the hub.",
    )
