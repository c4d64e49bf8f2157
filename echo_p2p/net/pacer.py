"""One direction of all of a program's traffic: whose turn it is, and when.

Promises: without a limit nobody waits; with one, those who wait get their turns in the order they
came, so that connections whose tasks wait for one quantum at a time share the rate equally; the sum
keeps the bounds that `bucket` states. A limit may change at any time: it holds at once, for those
who wait too.
"""

from __future__ import annotations

import math

import trio

from echo_p2p.net.bucket import Bucket, quantum_of
from echo_p2p.rates import Limits


class Pacer:
    """`rate` in bytes a second; None is no limit, 0 lets nothing that waits through."""

    def __init__(self, rate: int | None) -> None:
        self.rate = rate
        self.quantum = quantum_of(rate)
        self._bucket = Bucket(rate, trio.current_time()) if rate else None
        self._turns = trio.Lock()  # first come, first served
        self._changes = trio.lowlevel.ParkingLot()

    @property
    def limited(self) -> bool:
        return self.rate is not None

    def change(self, rate: int | None) -> None:
        """Another rate from now on."""
        now = trio.current_time()
        if rate and self._bucket is not None:
            self._bucket.change(rate, now)
        else:
            self._bucket = Bucket(rate, now) if rate else None
        self.rate = rate
        self.quantum = quantum_of(rate)
        self._changes.unpark_all()

    async def until_limited(self) -> None:
        """Return once there is a limit."""
        while self.rate is None:
            await self._changes.park()

    async def turn(self, size: int) -> None:
        """Wait until `size` bytes, at most a quantum, may go; they are counted."""
        if self.rate is None:
            return
        async with self._turns:
            # again, since what does not wait may have been sent meanwhile
            while delay := self._delay():
                with trio.move_on_after(delay):
                    await self._changes.park()
            self.count(size)

    def _delay(self) -> float:
        if self.rate is None:
            return 0.0
        return math.inf if self._bucket is None else self._bucket.delay(trio.current_time())

    def count(self, size: int) -> None:
        """Count bytes that did not wait; less than zero gives back what was not used."""
        if self._bucket is not None:
            self._bucket.spend(size, trio.current_time())


class Traffic:
    """Both directions of one program, shared by all its connections. Made inside trio.

    `sent` and `received` count all bytes over its connections, as the limits do.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.up = Pacer(limits.upload)
        self.down = Pacer(limits.download)
        self.sent = 0
        self.received = 0

    def change(self, limits: Limits) -> None:
        """Other limits from now on."""
        self.limits = limits
        self.up.change(limits.upload)
        self.down.change(limits.download)
