"""Every number of the network layer, and what has to be true of libp2p.

libp2p's release is pinned: `channel`, `mux` and `libp2p_host` stand in for parts of 0.8.1 and use
its internals. `apply` is called before the first host is made and refuses any other release.

Measured on the two-core reference machine, one stream between two processes: libp2p's own muxer
and Noise layer reach a quarter of asyncio's TLS, these three quarters (`benchmarks/stream.py`).
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import logging
import os
import sys

from echo_p2p.errors import NetError

LIBP2P_RELEASE = "0.8.1"
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h

KIB, MIB = 1024, 1024 * 1024

# How much, in bytes.
READ_BYTES = 256 * KIB  # asked of the socket at once: several Noise packets a system call
QUEUE_BYTES = 256 * KIB  # waiting to be encrypted; writers wait beyond it
UNSENT_BYTES = 128 * KIB  # in the socket's buffer: what is urgent goes after them
LEAST_BATCH_BYTES = 16 * KIB  # of chunks, given to the socket at once on a slow link,
MOST_BATCH_BYTES = 256 * KIB  # and on a fast one: what is urgent waits behind them
URGENT_BYTES = KIB  # a smaller answer is no chunk and goes first, whatever the protocol
FIRST_BULK_BYTES = 16 * KIB  # of chunks, before there is credit for more
MAX_QUEUE_BYTES = 4 * MIB  # answers that a remote provokes and does not read; it is cut off
MAX_WINDOW_BYTES = 8 * MIB  # of one stream: 80 MB/s at 100 ms
GROWTH_BYTES = 32 * MIB  # what all windows of a connection may grow by, together
MERGE_BYTES = 4 * KIB  # smaller chunks are joined: bytes cost what they weigh, not an object each
JOIN_BYTES = 16 * KIB  # a smaller body is copied behind its header, a larger one sent after it
MAX_FRAME_BYTES = 64 * MIB  # beyond it a frame is not even skipped

KEPT_BYTES = 4 * MIB  # the longest chunk

# How many.
MAX_CONNECTIONS = 512
MAX_HANDSHAKES = 128  # of strangers, at a time
MAX_HANDSHAKES_PER_ADDRESS = 32
MAX_STREAMS = 128  # on a connection, each way
STREAMS_PER_PROTOCOL = 32  # that we use for requests to one peer; more requests wait

# How long, in seconds.
HANDSHAKE_S = 10.0
BATCH_S = 0.01  # that a batch of chunks may take to leave
STAGGER_S = 0.5  # an address's head start over the next
PING_S = 15.0
MISSED_PINGS = 3  # in a row: the peer is gone
IDLE_S = 120.0  # a stream without a request is closed by who serves it,
KEEP_S = 60.0  # and well before that by who asks, so that they never race
HALF_CLOSED_S = 60.0  # how long a remote may go on with a stream that we closed
FLUSH_S = 1.0  # for a goodbye to be sent
CLOSE_S = 3.0  # for a peer, or all of them, to be let go


def keep_pages() -> None:
    """Have glibc reuse the memory of buffers up to `KEPT_BYTES` instead of giving it back at once.

    By default a megabyte is mapped for each buffer of a chunk and unmapped after it, and its 256
    page faults cost more than copying it: up to a third of what receiving a chunk takes. Elsewhere
    than on glibc nothing is done.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 2 * KEPT_BYTES)
        mallopt(_M_TRIM_THRESHOLD, 8 * KEPT_BYTES)


def apply() -> None:
    """Check the release, and keep libp2p from writing to our terminal. May be called again."""
    from libp2p.network.connection import swarm_connection

    release = importlib.metadata.version("libp2p")
    if release != LIBP2P_RELEASE:
        raise NetError(
            f"libp2p {release} is installed; this program needs {LIBP2P_RELEASE} exactly.",
            fix=f"Run: pip install libp2p=={LIBP2P_RELEASE}",
        )
    # This module logs through the root logger, which gives that a handler as a side effect.
    swarm_connection.logging = logging.getLogger("libp2p.network.connection")
    keep_pages()
    if "LIBP2P_DEBUG" not in os.environ:
        # libp2p reports what strangers do wrong as errors of ours.
        logging.getLogger("libp2p").setLevel(logging.CRITICAL)
