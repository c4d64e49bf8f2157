"""What a hub says that a version must say, and what a node makes of it."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from echo_p2p.canary import (
    CANARY_FILE,
    Canary,
    CanarySequence,
    difference,
    read_canary,
    write_canary,
)
from echo_p2p.errors import ManifestError

CANARY = Canary(
    [CanarySequence([1, 2, 3, 4], [-1.0, -2.0]), CanarySequence([5, 6], [-3.0])], tolerance=0.01
)


def test_a_canary_comes_back_as_it_was_written(tmp_path: Path) -> None:
    assert read_canary(tmp_path) is None
    write_canary(tmp_path, CANARY)
    assert read_canary(tmp_path) == CANARY


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"\xff\xfe",
        b"{" * 9999,
        b" " * ((1 << 20) + 1),
        json.dumps({"sequences": [], "tolerance": 1}).encode(),
        json.dumps({"sequences": [[[1], [-1.0]]], "tolerance": 1}).encode(),
        json.dumps({"sequences": [{"tokens": [1], "logprobs": [-1.0]}], "tolerance": 1}).encode(),
        json.dumps(
            {"sequences": [{"tokens": [1, 2], "logprobs": [-1.0, 0.0]}], "tolerance": 1}
        ).encode(),
        json.dumps(
            {"sequences": [{"tokens": [1, 2], "logprobs": [-1.0]}], "tolerance": 0}
        ).encode(),
    ],
)
def test_what_is_no_canary_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / CANARY_FILE).write_bytes(content)
    with pytest.raises(ManifestError, match=CANARY_FILE):
        read_canary(tmp_path)


def test_only_the_ends_of_sequences_are_compared_and_all_must_be_numbers() -> None:
    def says(*of_first: float) -> float:
        def score(tokens: Sequence[int]) -> list[float]:
            return list(of_first) if len(tokens) == 4 else [-3.0]

        return difference(CANARY, score)

    assert says(-9.0, -1.0, -2.0) == 0.0
    assert says(0.0, -1.3, -2.0) == pytest.approx(0.1)
    assert says(0.0, -1.0, math.nan) == math.inf
    assert says(math.nan, -1.0, -2.0) == math.inf
    assert says(-1.0, -2.0) == math.inf  # one is missing
