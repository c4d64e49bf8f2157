"""The output layer of a large vocabulary in little memory, by what the process has resident."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "learner_memory.py"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_scores_of_2048_tokens_of_150k_need_less_than_half_of_their_logits() -> None:
    arguments = json.dumps({"way": "ours", "tokens": 2048})
    done = subprocess.run(
        [sys.executable, str(BENCHMARK), "--child", "head", arguments],
        stdout=subprocess.PIPE,
        check=True,
    )
    logits_mb = 2048 * 151_936 * 4 / 1e6
    assert json.loads(done.stdout.splitlines()[-1])["measured"] < 0.5 * logits_mb
