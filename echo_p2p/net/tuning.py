"""What has to be true of libp2p before a host is made.

The release is pinned because `libp2p_host`, `mux` and `channel` build on libp2p's internals.
"""

from __future__ import annotations

import importlib.metadata
import logging
import os

from libp2p.network.connection import swarm_connection

from echo_p2p.errors import NetError

LIBP2P_RELEASE = "0.8.1"


def apply() -> None:
    """Check the release, and keep libp2p from writing to our terminal. May be called again."""
    release = importlib.metadata.version("libp2p")
    if release != LIBP2P_RELEASE:
        raise NetError(
            f"libp2p {release} is installed; this program needs {LIBP2P_RELEASE} exactly.",
            fix=f"Run: pip install libp2p=={LIBP2P_RELEASE}",
        )
    # This module logs through the root logger, which gives that a handler as a side effect.
    swarm_connection.logging = logging.getLogger("libp2p.network.connection")
    if "LIBP2P_DEBUG" not in os.environ:
        # libp2p reports what strangers do wrong as errors of ours.
        logging.getLogger("libp2p").setLevel(logging.CRITICAL)
