"""One update on several devices: who computes what, and what they tell each other.

Every rank has the whole update and the whole of what is trained; a rank computes some of the
micro-batches, gradients are summed over ranks, and all take the same step. What is measured of
single tokens is gathered, so that all judge the update alike. The base is on each device
(`replicate`) or in pieces on all of them (`shard`: FSDP2, a layer at a time brought together when
it is used; PyTorch FSDP, Zhao et al. 2023, arXiv 2304.11277). Sharded, all ranks go through the
layers equally often: one that has no work left goes through them with an empty batch.

What is trained is never sharded: an adapter is small, and so checkpoints do not depend on the
number of ranks.

Promises: after each update all ranks have the same weights, or the learner ends; an error that one
rank has is an error on all; with one rank nothing here does anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from math import ceil
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from echo_hub.config import LearnerSection
from echo_hub.learner.batches import micro_batches, padded_tokens
from echo_hub.learner.seats import LOOPBACK, Seat, stay_on_loopback
from echo_p2p.errors import ConfigError, LearnerError, ProcessError

_PATIENCE = timedelta(hours=1)  # the hub's deadlines are shorter; a rank that died is seen at once


class Ranks:
    """The rank of this process among `size`; `Ranks()` is a learner of one process.

    `sharded`, set before the base is placed: it lies in pieces on all ranks.
    """

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank, self.size = rank, size
        self.sharded = False

    def divide(
        self, lengths: Sequence[int], budget: int, *, packed: bool = False
    ) -> list[list[list[int]]]:
        """For each rank its micro-batches, as indices of `lengths`; sharded, equally many for all,
        of which some are empty."""
        if self.size == 1:
            return [micro_batches(lengths, budget, packed=packed)]
        shares = divide(lengths, budget, self.size, packed=packed)
        if not self.sharded:
            return shares
        rounds = max(map(len, shares))
        return [share + [[]] * (rounds - len(share)) for share in shares]

    def place(self, causal: Any, trained: Iterable[torch.nn.Parameter], device: str) -> Any:
        """Put a model on this rank's device: whole, or this rank's piece of each layer."""
        if self.sharded:
            _shard(causal, set(trained), torch.device(device).type, self.size)
        return causal.to(device)

    def sum_gradients(self, weights: Iterable[torch.nn.Parameter]) -> None:
        """Make every rank's gradients those of the whole update."""
        if self.size == 1:
            return
        gradients = []
        for weight in weights:
            if weight.grad is None:  # no micro-batch of this rank has touched it
                weight.grad = torch.zeros_like(weight)
            gradients.append(weight.grad)
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        start = 0
        for gradient in gradients:
            end = start + gradient.numel()
            gradient.copy_(flat[start:end].view_as(gradient))
            start = end

    def total(self, *numbers: float) -> tuple[float, ...]:
        """Sums over all ranks."""
        if self.size == 1:
            return numbers
        sums = torch.tensor(numbers, dtype=torch.float64, device=self._device())
        dist.all_reduce(sums)
        return tuple(sums.tolist())

    def gather(self, values: torch.Tensor) -> torch.Tensor:
        """Values [n] of every rank, n of each its own, end to end in the order of ranks; on the
        device of `values`."""
        if self.size == 1:
            return values
        device = self._device()
        count = torch.tensor([len(values)], device=device)
        counts = [torch.zeros_like(count) for _ in range(self.size)]
        dist.all_gather(counts, count)
        width = max(int(one) for one in counts)
        padded = torch.zeros(width, dtype=values.dtype, device=device)
        padded[: len(values)] = values
        parts = [torch.zeros_like(padded) for _ in range(self.size)]
        dist.all_gather(parts, padded)
        cut = [part[: int(one)] for part, one in zip(parts, counts, strict=True)]
        return torch.cat(cut).to(values.device)

    def first(self, action: Callable[[], None]) -> None:
        """Do on the first rank what only one may do; a LearnerError of it is raised on all."""
        error: LearnerError | None = None
        if self.rank == 0:
            try:
                action()
            except LearnerError as caught:
                error = caught
        failed = self.total(float(error is not None))[0]
        if error is not None:
            raise error
        if failed:
            raise LearnerError("the first rank could not do its part.")

    def check_alike(self, weights: Iterable[torch.Tensor]) -> None:
        """ProcessError unless all ranks have the same weights: then none of them is to be trusted.

        Compared is a sum over all weights, to the last bit: what drifts apart drifts in all.
        """
        if self.size == 1:
            return
        own = torch.stack([weight.detach().double().sum() for weight in weights]).sum()
        least, most = own.clone(), own
        dist.all_reduce(least, op=dist.ReduceOp.MIN)
        dist.all_reduce(most, op=dist.ReduceOp.MAX)
        if not torch.equal(least, most):
            raise ProcessError("the ranks of the learner have come to different weights.")

    def _device(self) -> torch.device:
        """Where collectives want their tensors."""
        return torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")


ALONE = Ranks()


def divide(
    lengths: Sequence[int], budget: int, ranks: int, *, packed: bool = False
) -> list[list[list[int]]]:
    """For each rank its micro-batches: every sequence once, and about equally many tokens.

    Micro-batches are small enough that there is one for each rank; the largest first, each goes to
    the rank with the fewest tokens so far. Pure.
    """
    each = max(max(lengths, default=1), ceil(sum(lengths) / ranks))
    batches = micro_batches(lengths, min(budget, each), packed=packed)
    sized = [
        (padded_tokens([lengths[i] for i in batch], packed=packed), batch) for batch in batches
    ]
    shares: list[list[list[int]]] = [[] for _ in range(ranks)]
    tokens = [0] * ranks
    for size, batch in sorted(sized, key=lambda one: -one[0]):
        least = tokens.index(min(tokens))
        shares[least].append(batch)
        tokens[least] += size
    return shares


def join(seat: Seat, learner: LearnerSection) -> Ranks:
    """Meet the other ranks.

    Raises:
        ConfigError: this machine has not as many devices.
    """
    if learner.device == "cuda" and torch.cuda.device_count() < seat.size:
        raise ConfigError(
            f"learner.devices = {seat.size}, and torch sees {torch.cuda.device_count()} here.",
            fix="Set it to that, or to 1.",
        )
    stay_on_loopback()
    if learner.device == "cuda":
        torch.cuda.set_device(seat.rank)
    elif not learner.threads:
        torch.set_num_threads(max(1, torch.get_num_threads() // seat.size))
    store = TCPStore(
        LOOPBACK,
        seat.port,
        seat.size,
        is_master=seat.listener is not None,
        wait_for_workers=False,
        master_listen_fd=seat.listener.detach() if seat.listener is not None else None,
        timeout=_PATIENCE,
    )
    dist.init_process_group(
        "nccl" if learner.device == "cuda" else "gloo",
        store=store,
        rank=seat.rank,
        world_size=seat.size,
        timeout=_PATIENCE,
    )
    return Ranks(seat.rank, seat.size)


def device_of(seat: Seat, device: str) -> str:
    """The device of one rank."""
    return f"cuda:{seat.rank}" if device == "cuda" else device


def _shard(causal: Any, trained: set[torch.nn.Parameter], kind: str, size: int) -> None:
    """Shard the weights of each decoder layer over all ranks, but for those that are trained.

    Embeddings, norms and the output layer stay whole: they are used outside of the layers.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from transformers.modeling_layers import GradientCheckpointingLayer

    decoder = causal.get_decoder()
    layers = [one for one in decoder.modules() if isinstance(one, GradientCheckpointingLayer)]
    frozen = {one for layer in layers for one in layer.parameters()} - trained
    mesh = init_device_mesh(kind, (size,))
    for layer in layers:
        fully_shard(layer, mesh=mesh, reshard_after_forward=True, ignored_params=trained)
    outside = set(decoder.parameters()) - frozen
    fully_shard(decoder, mesh=mesh, ignored_params=outside)  # so that layers are fetched ahead
