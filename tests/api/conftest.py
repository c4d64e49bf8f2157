"""An API that is served for the tests of a file."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

sys.path.append(str(Path(__file__).parents[1] / "unit"))

from served import Served, serve


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Open on loopback, without a token."""
    with serve(tmp_path_factory.mktemp("served"), public=True) as one:
        yield one


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """With a token, over TLS."""
    with serve(tmp_path_factory.mktemp("locked"), tls=True, token="a long enough secret") as one:
        yield one


@pytest.fixture
def browser(served: Served) -> Iterator[httpx.Client]:
    """Somebody on this machine, with the CSRF token of their session."""
    with served.client() as client:
        client.headers["x-csrf-token"] = client.get("/api/v1/session").json()["csrf"]
        yield client
