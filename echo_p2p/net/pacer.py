"""One direction of all of a program's traffic: whose turn it is, and when.

Promises: without a limit nobody waits; with one, those who wait get their turns in the order they
came, so that connections whose tasks wait for one quantum at a time share the rate equally; the sum
keeps the bounds that `bucket` states.
"""

from __future__ import annotations

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

    @property
    def limited(self) -> bool:
        return self.rate is not None

    async def turn(self, size: int) -> None:
        """Wait until `size` bytes, at most a quantum, may go; they are counted."""
        if self.rate is None:
            return
        if self._bucket is None:
            await trio.sleep_forever()
            raise AssertionError
        async with self._turns:
            # again, since what does not wait may have been sent meanwhile
            while delay := self._bucket.delay(trio.current_time()):  # noqa: ASYNC110
                await trio.sleep(delay)
            self._bucket.spend(size, trio.current_time())

    def count(self, size: int) -> None:
        """Count bytes that did not wait; less than zero gives back what was not used."""
        if self._bucket is not None:
            self._bucket.spend(size, trio.current_time())


class Traffic:
    """Both directions of one program, shared by all its connections. Made inside trio."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.up = Pacer(limits.upload)
        self.down = Pacer(limits.download)
