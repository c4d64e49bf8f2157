"""What is changed inside py-libp2p 0.8.1, all of it here, each with its reason.

libp2p's release is pinned because these are internals. `apply` is called once, before the first
host is made; it refuses any other release.
"""

from __future__ import annotations

import importlib.metadata
import logging
import os
from typing import Any

import trio

from echo_p2p.errors import NetError

LIBP2P_RELEASE = "0.8.1"
RAW_READ_BYTES = 256 * 1024

_applied = False


def apply() -> None:
    """Patch libp2p. Idempotent."""
    global _applied
    if _applied:
        return
    release = importlib.metadata.version("libp2p")
    if release != LIBP2P_RELEASE:
        raise NetError(
            f"libp2p {release} is installed; this program needs {LIBP2P_RELEASE} exactly.",
            fix=f"Run: pip install libp2p=={LIBP2P_RELEASE}",
        )
    _silence()
    _buffer_reads()
    _fit_frames()
    _wait_for_windows()
    _applied = True


def _silence() -> None:
    """libp2p reports every remote's misbehaviour as an error of ours; LIBP2P_DEBUG brings it back."""
    from libp2p.network.connection import swarm_connection

    logger = logging.getLogger("libp2p")
    if "LIBP2P_DEBUG" not in os.environ:
        logger.addHandler(logging.NullHandler())
        logger.setLevel(logging.CRITICAL)
    # This module logs through the root logger, which installs a handler on it as a side effect.
    swarm_connection.logging = logging.getLogger("libp2p.network.connection")


def _buffer_reads() -> None:
    """Noise reads a 2-byte length, then the body: from a buffer, not with a system call each."""
    from libp2p.io.exceptions import ConnectionClosedError
    from libp2p.io.trio import TrioTCPStream

    initialise = TrioTCPStream.__init__

    def __init__(self: Any, stream: trio.SocketStream) -> None:
        initialise(self, stream)
        self._held = b""
        self._taken = 0

    async def read(self: Any, n: int | None = None) -> bytes:
        async with self.read_lock:
            if n == 0:
                return b""
            if self._taken == len(self._held):
                try:
                    self._held = await self.stream.receive_some(RAW_READ_BYTES)
                except trio.BrokenResourceError as error:
                    raise ConnectionClosedError("reset by the remote", transport="tcp") from error
                except trio.ClosedResourceError:
                    self._held = b""
                self._taken = 0
            start = self._taken
            end = len(self._held) if n is None else min(start + n, len(self._held))
            self._taken = end
            return bytes(self._held[start:end])

    TrioTCPStream.__init__ = __init__
    TrioTCPStream.read = read


def _fit_frames() -> None:
    """A full yamux frame fills one Noise packet, and a stream's window covers a fast long path."""
    from libp2p.stream_muxer.yamux import yamux

    yamux.MAX_MESSAGE_SIZE = 65519
    yamux.DEFAULT_WINDOW_SIZE = 8 * 1024 * 1024


def _wait_for_windows() -> None:
    """A writer waits for a slow reader as long as its own deadline allows, not five seconds."""
    from libp2p.stream_muxer.yamux import yamux

    class Clock:
        def __getattr__(self, name: str) -> Any:
            return getattr(trio, name)

        def move_on_after(self, seconds: float) -> trio.CancelScope:
            return trio.move_on_after(3600 if seconds == 5.0 else seconds)

    yamux.trio = Clock()
