"""vLLM with versions that are whole models, and bases it cannot serve.

A file of its own: a process can have one engine of vLLM's at a time.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("vllm", reason="vLLM is not installed; `make test-vllm` installs and runs it")

import torch
from engine_support import BASE, answer_all, differences, sums, write_adapter
from safetensors.numpy import save_file
from safetensors.torch import load_file

from echo_node.engines.driver import Driver
from echo_node.engines.torch import TorchEngine
from echo_node.engines.vllm import Options, VllmEngine
from echo_p2p.errors import EngineError

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

OPTIONS = Options(max_sequences=64, cache_bytes=48 << 20)


def test_whole_models_take_turns(tmp_path: Path) -> None:
    versions = []
    for seed in range(2):
        folder = tmp_path / str(10 + seed)
        folder.mkdir()
        rng = np.random.default_rng(seed)
        weights = {
            name: (value.float() + torch.from_numpy(rng.normal(0, 0.02, value.shape)).float())
            for name, value in load_file(BASE / "model.safetensors").items()
        }
        save_file({n: w.numpy() for n, w in weights.items()}, folder / "model.safetensors")
        versions.append(folder)
    theirs = Driver(TorchEngine(max_sequences=64, device="cpu"))
    theirs.load(BASE, "float32")
    engine = VllmEngine(OPTIONS)
    driver = Driver(engine)
    driver.load(BASE, "float32")
    try:
        driver.activate(0, versions[0])
        first = sums(8, 9)
        for number, job in enumerate(first):
            driver.submit(number, job)
        driver.step()
        driver.activate(1, versions[1])  # while those are being answered
        jobs = [*first, *sums(24, 10)]
        orders = [(n, jobs[n], n % 2) for n in range(8, len(jobs))]
        answers = answer_all(driver, orders)
        assert len(answers) == len(jobs)
        for version, folder in enumerate(versions):
            numbers = [n for n in sorted(answers) if answers[n][0] == version]
            theirs.activate(version, folder)
            expected = theirs.generate([jobs[n] for n in numbers])
            ours = [answers[n][1] for n in numbers]
            unequal, largest = differences(ours, expected)
            assert unequal == 0
            assert largest < 1e-4
        with pytest.raises(EngineError, match="another shape"):
            driver.activate(2, write_adapter(tmp_path / "adapter", 1))
    finally:
        engine.close()


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        ({"auto_map": {"AutoModelForCausalLM": "x.Y"}}, "auto_map"),
        ({"model_type": "no-such-thing"}, "vLLM cannot serve"),
        ({"architectures": ["BertForMaskedLM"]}, "vLLM cannot serve"),
        ({"num_attention_heads": "four"}, "vLLM cannot serve"),
    ],
)
def test_a_base_that_cannot_be_served_is_refused(
    tmp_path: Path, change: dict[str, object], complaint: str
) -> None:
    for file in BASE.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((BASE / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(EngineError, match=complaint):
        VllmEngine(OPTIONS).load(tmp_path, "float32")
