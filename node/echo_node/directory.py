"""Asking the directory where a hub is, when none of its bootstrap addresses answers."""

from __future__ import annotations

import logging

from echo_p2p.bootstrap import RunEntry
from echo_p2p.directory.client import open_directory
from echo_p2p.errors import DirectoryError

DIRECTORY_S = 60.0

log = logging.getLogger(__name__)


async def ask_directory(entry: RunEntry) -> tuple[str, ...]:
    """Where the hub says it is now; empty if the directory does not know.

    The directory process is large, so it is started for this one question and ended after it.
    """
    if not entry.directory_peers:
        return ()
    try:
        async with open_directory(
            initial_peers=entry.directory_peers, client_only=True, deadline_s=DIRECTORY_S
        ) as directory:
            record = await directory.find(entry.id, entry.hub_public_key)
    except DirectoryError as error:
        log.info("the directory is of no help: %s", error.message.splitlines()[0])
        return ()
    return () if record is None else entry.believable(record.addresses)
