"""One look at all sensors, from a trio program."""

from __future__ import annotations

import os

import trio

from echo_node.limits.rules import Readings
from echo_node.limits.settings import Limits
from echo_node.sensors.computer import Own, Sensors, family


async def look(sensors: Sensors, limits: Limits) -> tuple[Readings, Own]:
    """What matters for these limits; what data was moved is not in it."""
    # trio-typing, which libp2p brings, shadows trio's own types with older ones
    return await trio.to_thread.run_sync(  # type: ignore[call-arg]
        lambda: sensors.read(limits, family(os.getpid())), abandon_on_cancel=True
    )
