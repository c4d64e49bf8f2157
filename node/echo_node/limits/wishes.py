"""What the limits on memory mean for the fit of a model. Pure."""

from __future__ import annotations

from dataclasses import replace

from echo_node.fit import Wishes
from echo_node.hardware.base import Machine
from echo_node.limits.amounts import parse_amount
from echo_node.limits.settings import Limits

NODE_BYTES = 150 << 20
"""What the node's own process may take of the limit on RAM."""


def wishes_for(limits: Limits, machine: Machine, wishes: Wishes) -> Wishes:
    """`wishes` with what the volunteer allows."""
    ram = parse_amount(limits.ram).of(machine.ram)
    assert ram is not None
    gpu = parse_amount(limits.gpu_memory)
    return replace(wishes, ram=max(0, ram - NODE_BYTES), gpu=gpu.size, gpu_share=gpu.share)
