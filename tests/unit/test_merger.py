"""Merging without PEFT gives PEFT's bits, and refuses what does not fit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_models import make_adapter, make_base
from peft import PeftModel
from transformers import AutoModelForCausalLM

from echo_node.engines.adapter import Merger, read_adapter
from echo_p2p.errors import EngineError

SHAPE: dict[str, Any] = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj"], "use_rslora": False}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("base"))


def model_of(base: Path, dtype: torch.dtype) -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(base, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("options", [{}, {"use_rslora": True, "r": 3, "lora_alpha": 5}])
def test_the_merged_weights_are_pefts_to_the_bit(
    base: Path, tmp_path: Path, dtype: torch.dtype, options: dict[str, object]
) -> None:
    folder = make_adapter(base, tmp_path / "adapter", 1, **options)
    expected = PeftModel.from_pretrained(model_of(base, dtype), folder).merge_and_unload()
    model, adapter = model_of(base, dtype), read_adapter(folder)
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    merger = Merger(model, adapter.shape)
    merger.check(adapter)
    merger.merge(adapter)
    theirs = dict(expected.named_parameters())
    ours = dict(model.named_parameters())
    assert ours.keys() == theirs.keys()
    for name, weight in ours.items():
        assert torch.equal(weight, theirs[name]), name
    assert any(not torch.equal(weight, before[name]) for name, weight in ours.items())
    merger.restore()
    assert all(torch.equal(weight, before[name]) for name, weight in ours.items())


@pytest.mark.parametrize(
    ("targets", "complaint"),
    [(["none_such"], "it has none of none_such"), (["self_attn"], "self_attn is no linear layer")],
)
def test_targets_that_are_not_there_are_refused(
    base: Path, targets: list[str], complaint: str
) -> None:
    with pytest.raises(EngineError, match=complaint):
        Merger(model_of(base, torch.float32), {**SHAPE, "target_modules": targets})


def test_the_engine_does_without_peft() -> None:
    """It is half of the time in which an engine starts."""
    code = "import sys, echo_node.engines.torch; assert 'peft' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
