"""What a process may use from now on: memory, and no network. For processes that run rewards.

Each function says, in a sentence, why it is not enforced here, or nothing. What is enforced holds
for the process and whatever it starts; only memory is counted for each process alone.
"""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import stat
import sys
from collections.abc import Iterable
from pathlib import Path

from echo_hub.scoring import seccomp
from echo_p2p.errors import ProcessError

MIB = 1 << 20
_ENVIRONMENT = (  # no tokens, keys or passwords in these
    "PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "LD_LIBRARY_PATH",
    "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "OMP_NUM_THREADS", "XDG_CACHE_HOME",
    "HF_HOME", "HF_DATASETS_CACHE", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE",
    "SSL_CERT_FILE", "SSL_CERT_DIR",
)  # fmt: skip


def inherited(more: Iterable[str]) -> set[str]:
    """Names of the environment variables that a scorer gets: `scoring.environment`, and a few."""
    return {*_ENVIRONMENT, *more}


def limit_memory(mib: int) -> str:
    """Allow so many MiB of address space beyond what is in use now; and no core dumps."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform != "linux":
        return f"{sys.platform} does not hold processes to a limit of memory."
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    most = pages * resource.getpagesize() + mib * MIB
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    return ""


def close_network() -> str:
    """Refuse new sockets of every kind, and end the connections there are."""
    column = seccomp.machine()
    if column is None:
        return "the network is not closed to rewards: that is done on Linux (x86-64, arm64) alone."
    try:
        seccomp.install(seccomp.no_network(column), column)
    except ProcessError as error:
        return f"the network is not closed to rewards: {error.message}"
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - names, of what may be gone by now
        _end_connection(int(name))
    return ""


def _end_connection(descriptor: int) -> None:
    with contextlib.suppress(OSError):
        if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            with socket.socket(fileno=os.dup(descriptor)) as connection:
                if connection.family in (socket.AF_INET, socket.AF_INET6):
                    connection.shutdown(socket.SHUT_RDWR)
