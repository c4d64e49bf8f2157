"""How long an engine's process may take, and what it leaves in its log."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

log = logging.getLogger(__name__)

MAX_FAILURES = 5
"""Processes that may fail in a row before the engine is given up."""

_SLOWEST_READ_BYTES_PER_S = 10e6
_SLOWEST_PROMPT_TOKENS_PER_S = 20.0
START_S = 180.0  # importing torch on a cold, slow disk
ACTIVATE_S = 300.0
SCORE_S = 300.0
_GRACE_S = 60.0
_PATIENCE = 10.0  # times slower than ever before is a hang
_MOST_PATIENCE_S = 600.0
LOOK_S = 0.5
_MAX_LOG_BYTES = 4 << 20


def stall_s(prompt_tokens: int, longest_pause_s: float) -> float:
    """How long an engine at work may sample nothing.

    Args:
        prompt_tokens: those of the jobs it has; it may be reading them all.
        longest_pause_s: the longest it has ever sampled nothing, and then gone on.
    """
    patience = min(_MOST_PATIENCE_S, _PATIENCE * longest_pause_s)
    return _GRACE_S + prompt_tokens / _SLOWEST_PROMPT_TOKENS_PER_S + patience


def restart_delay_s(failures: int) -> float:
    """Pause before the next process after `failures` failed ones in a row."""
    return min(30.0, 0.25 * 2.0 ** min(failures, 10))


def load_deadline_s(base: Path) -> float:
    """Time to load a snapshot, from a slow disk."""
    size = sum(file.stat().st_size for file in base.rglob("*") if file.is_file())
    return START_S + size / _SLOWEST_READ_BYTES_PER_S


@contextmanager
def open_log(path: Path) -> Iterator[Callable[[str], None]]:
    """What writes a line that an engine's process said; a large log is begun anew.

    Where that cannot be written (a full disk) it is said once, and the node goes on.
    """
    writes = True

    def write(line: str) -> None:
        nonlocal writes
        if not writes:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            large = path.exists() and path.stat().st_size > _MAX_LOG_BYTES
            with path.open("w" if large else "a", encoding="utf-8", errors="replace") as file:
                print(line, file=file)
        except OSError as error:
            writes = False
            log.warning("the engine's log %s cannot be written: %s", path, error.strerror)

    yield write
