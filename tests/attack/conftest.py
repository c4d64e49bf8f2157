"""The arena that the tests of this folder share: its learner never gets a batch together."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from attack_support import Arena, open_arena, small_run


@pytest.fixture(scope="session")
def arena(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    config = small_run(learner={"groups_per_update": 10_000, "staleness": 1, "threads": 1})
    with open_arena(config, tmp_path_factory.mktemp("arena"), ahead=24) as opened:
        yield opened
