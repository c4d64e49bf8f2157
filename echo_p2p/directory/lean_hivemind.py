"""hivemind's DHT without torch. The only module that imports hivemind.

hivemind's package modules import torch, which its DHT does not need. They are left out here: a
directory process takes 60 MB instead of 300, and starts in half a second instead of three. This and
what `hive.py` does to hivemind's insides fit one release, so any other is refused.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module, util
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

from echo_p2p.errors import DirectoryError

__all__ = [
    "DHTID",
    "P2P",
    "DHTLocalStorage",
    "DHTProtocol",
    "DHTRecord",
    "Multiaddr",
    "P2PDaemonError",
    "PeerID",
    "RecordValidatorBase",
    "node_module",
]

PINNED = "1.1.12"


def _leave_out_torch() -> None:
    """Put empty packages in place of those that import torch, with what the DHT takes from them."""
    found = version("hivemind")
    if found != PINNED:
        raise DirectoryError(
            f"hivemind {found} is installed; this program fits {PINNED} only.",
            fix=f"Run: pip install hivemind=={PINNED}",
        )
    assert "hivemind" not in sys.modules
    spec = util.find_spec("hivemind")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    root = Path(spec.submodule_search_locations[0])
    for name in ("hivemind", "hivemind.dht", "hivemind.utils"):
        package = ModuleType(name)
        package.__path__ = [str(root.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = package
    utils: Any = sys.modules["hivemind.utils"]
    utils.get_logger = import_module("hivemind.utils.logging").get_logger
    utils.get_dht_time = import_module("hivemind.utils.timed_storage").get_dht_time
    utils.SerializerBase = import_module("hivemind.utils.serializer").SerializerBase
    utils.MSGPackSerializer = import_module("hivemind.utils.serializer").MSGPackSerializer


os.environ.setdefault("HIVEMIND_LOGLEVEL", "ERROR")  # read when it is imported
_leave_out_torch()

import hivemind.dht.node as node_module  # noqa: E402
from hivemind.dht.protocol import DHTProtocol  # noqa: E402
from hivemind.dht.routing import DHTID  # noqa: E402
from hivemind.dht.storage import DHTLocalStorage  # noqa: E402
from hivemind.dht.validation import DHTRecord, RecordValidatorBase  # noqa: E402
from hivemind.p2p import P2P, P2PDaemonError, PeerID  # noqa: E402
from hivemind.utils.multiaddr import Multiaddr  # noqa: E402
