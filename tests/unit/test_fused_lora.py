"""LoRA in three matrix products is PEFT's LoRA, forward and backward."""

from __future__ import annotations

import copy

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

from echo_hub.learner.fused_lora import fuse_lora


class Two(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.first = nn.Linear(12, 20, bias=True, dtype=dtype)
        self.second = nn.Linear(20, 7, bias=False, dtype=dtype)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.second(torch.nn.functional.silu(self.first(inputs)))


def pair(dtype: torch.dtype, *, rslora: bool) -> tuple[nn.Module, nn.Module]:
    """The same adapted layers twice, PEFT's and fused."""
    torch.manual_seed(0)
    shape = LoraConfig(r=4, lora_alpha=8, target_modules=["first", "second"], use_rslora=rslora)
    plain = get_peft_model(Two(dtype), shape)
    for name, weight in plain.named_parameters():
        if "lora_B" in name:
            weight.data.normal_()
    fused = copy.deepcopy(plain)
    fuse_lora(fused)
    return plain, fused


@pytest.mark.parametrize("rslora", [False, True])
def test_values_and_gradients(rslora: bool):
    plain, fused = pair(torch.float32, rslora=rslora)
    inputs = torch.randn(3, 5, 12)
    outputs = []
    for model in (plain, fused):
        own = inputs.clone().requires_grad_()
        found = model(own)
        found.square().sum().backward()
        outputs.append((found, own.grad))
    for one, other in zip(*outputs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    gradients = dict(plain.named_parameters())
    compared = 0
    for name, weight in fused.named_parameters():
        if weight.requires_grad:
            torch.testing.assert_close(weight.grad, gradients[name].grad, rtol=1e-4, atol=1e-4)
            compared += 1
    assert compared == 4


def test_switched_off_it_is_the_base():
    plain, fused = pair(torch.float32, rslora=False)
    inputs = torch.randn(2, 12)
    with plain.disable_adapter(), fused.disable_adapter():
        off = fused(inputs)
        assert torch.equal(plain(inputs), off)
    assert not torch.allclose(fused(inputs), off)


def test_another_type_than_the_adapter_s_is_left_to_peft():
    plain, fused = pair(torch.bfloat16, rslora=False)
    inputs = torch.randn(2, 12).bfloat16()
    assert torch.equal(plain(inputs), fused(inputs))
    assert fused(inputs).dtype == torch.bfloat16
