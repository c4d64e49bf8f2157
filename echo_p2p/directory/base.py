"""What a directory is: run records by run id and hub key, found by whoever knows both.

A directory is a convenience, never the truth: a record counts because the hub signed it, and a
program works without one (bootstrap addresses, "latest?" requests). Whatever goes wrong in it is a
`DirectoryError`.
"""

from __future__ import annotations

from typing import Protocol

from echo_p2p.wire import RunRecord


class Directory(Protocol):
    """Where hubs publish their run's record, and nodes find it."""

    async def publish(self, record: bytes) -> None:
        """Store an envelope holding a `RunRecord`; its signer is the hub it speaks for."""
        ...

    async def find(self, run_id: str, hub_key: bytes) -> RunRecord | None:
        """The newest record this hub key signed for this run; None if nobody has one."""
        ...
