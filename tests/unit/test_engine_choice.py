"""Which part of the machine an engine gets, from the plan to the engine itself."""

from __future__ import annotations

import os

import pytest
import torch

from echo_node.engines import choice
from echo_node.engines.base import Resources
from echo_node.engines.choice import make_engine, vllm_options
from echo_node.engines.torch import TorchEngine, best_device
from echo_node.fit import Need, Plan
from echo_node.planner import resources_of


def plan(device: str) -> Plan:
    need = Need(fixed=1, weights=1, cache=1, logits=1, activations=1)
    return Plan(
        engine="torch", device=device, place="a card", dtype="bfloat16", context=512,
        max_sequences=8, memory=6 << 30, memory_share=0.75, need=need,
    )  # fmt: skip


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.setenv(name, "")  # so that it is put back to what it was
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("cuda", "mps", "device"),
    [(True, True, "cuda"), (True, False, "cuda"), (False, True, "mps"), (False, False, "cpu")],
)
def test_torch_computes_on_cuda_then_mps_then_the_cpu(
    monkeypatch: pytest.MonkeyPatch, cuda: bool, mps: bool, device: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    assert best_device() == device


def test_what_is_planned_reaches_torch_and_vllm() -> None:
    resources = resources_of(plan("cuda:1"))
    engine = make_engine("torch", max_sequences=8, threads=0, resources=resources)
    assert isinstance(engine, TorchEngine)
    assert (engine._device, engine._memory_share) == (torch.device("cuda:1"), 0.75)
    assert os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    options = vllm_options(resources, max_sequences=8, threads=3)
    assert (options.context, options.memory_share) == (512, 0.75)
    assert (options.max_sequences, options.threads, options.tensor_parallel) == (8, 3, 1)
    two = vllm_options(Resources(tensor_parallel=2), max_sequences=8, threads=0)
    assert (two.tensor_parallel, two.context, two.memory_share) == (2, 0, 0.9)
    assert resources_of(plan("metal")).device == ""


@pytest.mark.parametrize(
    ("shown", "device", "then"),
    [
        (None, "cuda:1", "1"),
        (None, "cpu", None),
        (None, "", None),
        ("2,3", "cuda:1", "3"),
        (None, "cuda:0,2", "0,2"),
        ("4,5,6", "cuda:0,2", "4,6"),
        ("3", "cuda:1", "3"),  # another load in the same process
    ],
)
def test_some_cards_of_several_are_shown(
    monkeypatch: pytest.MonkeyPatch, shown: str | None, device: str, then: str | None
) -> None:
    if shown is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    choice._show_only(device)
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == then


def test_a_card_s_memory_is_limited_before_the_model_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[tuple[float, ...]] = []
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda share, device: told.append((share,))
    )
    for device, share in (("cuda:1", 0.5), ("cuda:1", None), ("cpu", 0.5)):
        TorchEngine(max_sequences=1, device=device, memory_share=share)._limit_memory()
    assert told == [(0.5,)]
