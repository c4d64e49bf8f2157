"""The engine that is somebody's server, with a real vLLM as the server."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed; `make test-vllm` installs and runs it")

import psutil
import torch
from engine_support import BASE, answer_all, differences, sums, write_adapter
from http_policy import wait_until

from echo_node.engines.driver import Driver
from echo_node.engines.openai import Patience, ServerEngine
from echo_node.engines.torch import TorchEngine
from echo_p2p.errors import EngineError

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(2400)]
torch.set_num_threads(1)

START_S = 600.0  # of a busy machine
CONTEXT = 96
SEEDED = ("--logits-processors", "echo_node.engines.vllm_sampling:SeededV1")
PATIENCE = Patience(start_s=START_S, away_s=START_S, silence_s=START_S)


@pytest.fixture(scope="module")
def port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("server") / "log"


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return [write_adapter(folder / str(seed), seed) for seed in range(2)]


def started(port: int, log: Path, *options: str) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
    }  # fmt: skip
    command = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(BASE),
        "--served-model-name", "base", "--host", "127.0.0.1", "--port", str(port),
        "--dtype", "float32", "--enforce-eager", "--max-model-len", str(CONTEXT),
        "--max-num-seqs", "32", "--enable-lora", "--max-lora-rank", "16", "--max-loras", "3",
        "--generation-config", "vllm", *options,
    ]  # fmt: skip
    with log.open("ab") as file:
        return subprocess.Popen(command, env=environment, stdout=file, stderr=file)


def end(process: subprocess.Popen[bytes], how: signal.Signals = signal.SIGTERM) -> None:
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(how)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:  # it does not listen while it starts
        process.kill()
    _, alive = psutil.wait_procs(children, 20)
    for child in alive:  # of a server that was killed
        child.kill()
    process.wait(60)


@contextmanager
def serving(port: int, log: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    process = started(port, log, *options)
    try:
        wait_until(lambda: is_up(port) or process.poll() is not None, START_S)
        assert process.poll() is None, log.read_text()[-4000:]
        yield process
    finally:
        if process.poll() is None:
            end(process)


def is_up(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=2):
            return True
    except (OSError, urllib.error.URLError):
        return False


def test_a_server_that_samples_by_chance_is_refused(port: int, log: Path) -> None:
    with serving(port, log):
        engine = ServerEngine(f"http://127.0.0.1:{port}", max_sequences=8, patience=PATIENCE)
        with pytest.raises(EngineError, match="seeded sampling"):
            engine.load(BASE, "float32")


@pytest.mark.slow  # three starts of a server
def test_a_server_says_what_torch_says_and_is_survived(
    port: int, log: Path, adapters: list[Path]
) -> None:
    torch_driver = Driver(TorchEngine(max_sequences=64, device="cpu"))
    torch_driver.load(BASE, "float32")
    driver = Driver(ServerEngine(f"http://127.0.0.1:{port}", max_sequences=64, patience=PATIENCE))
    work = [*sums(128), *sums(8, top_k=5), *sums(8, top_p=0.9, temperature=0.7)]
    with serving(port, log, *SEEDED) as process:
        info = driver.load(BASE, "float32")
        assert info.context == CONTEXT
        wanted = []
        for version, adapter in enumerate(adapters):
            torch_driver.activate(version, adapter)
            driver.activate(version, adapter)
            wanted.append(torch_driver.generate(work))
            unequal, largest = differences(driver.generate(work), wanted[version])
            assert unequal == 0
            assert largest < 1e-4
            tokens = work[0].prompt + wanted[version][0].tokens
            assert driver.score(tokens) == pytest.approx(torch_driver.score(tokens), abs=1e-4)
        assert wanted[0] != wanted[1]

        few = work[:16]
        orders = []
        for version in range(2, 22):  # under load, and more than the server has room for
            driver.activate(version, adapters[version % 2])
            driver.release(version - 1)
            for number, job in enumerate(few):
                driver.submit(100 * version + number, job)
            for done in driver.step():
                orders.append((done.number, done.version, done.completion))
        for number, (version, completion) in answer_all(driver, []).items():
            orders.append((number, version, completion))
        assert len(orders) == 20 * len(few)
        for number, version, completion in orders:
            assert version == number // 100
            assert completion.tokens == wanted[version % 2][number % 100].tokens

        with pytest.raises(EngineError, match="did not take the adapter"):
            driver.activate(90, write_adapter(log.parent / "large", 9, rank=32))
        assert driver.active == 21

        for number, job in enumerate(work):
            driver.submit(number, job)
        while driver.engine.sampled < 1:
            driver.step()
        end(process, signal.SIGKILL)
        assert driver.running > 0
    with serving(port, log, *SEEDED):  # it has forgotten the versions
        answers = answer_all(driver, [])
        for number, (_, completion) in answers.items():
            assert completion.tokens == wanted[1][number].tokens
        driver.engine.close()
