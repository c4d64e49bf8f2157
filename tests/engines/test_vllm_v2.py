"""The newer of vLLM's model runners, which cards get, draws the same tokens."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed; `make test-vllm` installs and runs it")
pytest.importorskip("triton", reason="Triton is not installed")

from engine_support import BASE, differences, mixed_work

from echo_node.engines.base import Completion
from echo_node.engines.driver import Driver
from echo_node.engines.torch import TorchEngine

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

PROGRAM = Path(__file__).with_name("vllm_v2_program.py")


def test_the_newer_model_runner(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["runner"] == "vllm.v1.worker.cpu.model_runner.CPUModelRunner"
    jobs = mixed_work()
    versions = [version for version, *_ in said["answers"]]
    assert versions == [number % 2 for number in range(len(jobs))]
    driver = Driver(TorchEngine(max_sequences=32, device="cpu"))
    driver.load(BASE, "float32")
    for version in range(2):
        driver.activate(version, tmp_path / str(version))
        mine = [n for n in range(len(jobs)) if n % 2 == version]
        expected = driver.generate([jobs[n] for n in mine])
        ours = [
            Completion(*said["answers"][n][1:], one.finish)
            for n, one in zip(mine, expected, strict=True)
        ]
        unequal, largest = differences(ours, expected)
        assert unequal == 0
        assert largest < 1e-4
    assert said["scores"] == pytest.approx(driver.score(list(range(3, 20))), abs=1e-4)
