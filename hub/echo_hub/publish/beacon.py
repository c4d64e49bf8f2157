"""Keeps the run's record in the directory: where the hub is, and its newest version.

The directory is a convenience: whatever goes wrong in it is logged and tried again, and never
reaches the run.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Sequence
from pathlib import Path

import trio

from echo_hub.publish.publisher import Publisher
from echo_p2p.directory.client import open_directory
from echo_p2p.directory.records import next_expiry
from echo_p2p.envelope import seal
from echo_p2p.errors import DirectoryError, ProcessError
from echo_p2p.identity import Identity
from echo_p2p.wire import RunRecord

log = logging.getLogger(__name__)

RECORD_LIFE_S = 600.0
REFRESH_S = 120.0
START_DEADLINE_S = 60.0
_RETRY_S = 5.0


async def keep_record(
    *,
    identity: Identity,
    run_id: str,
    addresses: Sequence[str],
    publisher: Publisher,
    listen: Sequence[str],
    identity_path: Path,
    initial_peers: Sequence[str],
) -> None:
    """Run a directory process and publish the run's record at every version; never returns."""
    expiry = 0.0
    while True:
        try:
            async with open_directory(
                listen=listen,
                initial_peers=initial_peers,
                client_only=False,
                identity_path=identity_path,
                deadline_s=START_DEADLINE_S,
            ) as directory:
                version = -1
                while True:
                    with trio.move_on_after(REFRESH_S):
                        await publisher.wait_newer(version)
                    latest = publisher.latest
                    if latest is None:
                        continue
                    version = latest.version
                    expiry = next_expiry(previous=expiry, now=time.time(), life_s=RECORD_LIFE_S)
                    record = RunRecord(
                        run_id=run_id,
                        version=version,
                        addresses=tuple(addresses),
                        adapter=latest.artifact.id,
                        expires_at=expiry,
                    )
                    await directory.publish(seal(identity, record))
        except (DirectoryError, ProcessError) as error:
            log.warning("the directory failed and is started again: %s", error)
        await trio.sleep(_RETRY_S * (1 + random.random()))
