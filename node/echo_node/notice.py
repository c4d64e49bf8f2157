"""Waiting, within one trio program, for something to become true."""

from __future__ import annotations

from collections.abc import Callable

import trio


class Notice:
    """Tasks wait for a condition; whoever changes what it depends on calls `tell`."""

    def __init__(self) -> None:
        self._lot = trio.lowlevel.ParkingLot()

    def tell(self) -> None:
        """Let every waiting task look again."""
        self._lot.unpark_all()

    async def until(self, condition: Callable[[], object]) -> None:
        """Return once `condition()` is true; at once if it is already."""
        while not condition():
            await self._lot.park()
