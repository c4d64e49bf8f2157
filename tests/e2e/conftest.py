"""A stage for each test: its folder, and every process it started ended afterwards."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from programs import Stage


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def port() -> int:
    """A TCP port that is free now, and the next one too."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            number: int = first.getsockname()[1]
            try:
                second.bind(("127.0.0.1", number + 1))
            except (OSError, OverflowError):
                continue
            return number
