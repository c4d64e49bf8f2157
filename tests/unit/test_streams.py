"""Noise streams in slots: what is drawn does not depend on which rows it is drawn with."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from echo_node.engines.streams import Stream, Streams
from echo_p2p.sampling import keys_to_torch, row_keys, sample

SLOTS = 6


def stream(chance: random.Random) -> Stream:
    how = chance.choice([(1.0, 0, 1.0), (0.7, 5, 1.0), (1.3, 0, 0.8)])
    return Stream(chance.getrandbits(63), chance.randrange(9), chance.randrange(200), *how)


@pytest.mark.parametrize("vocab_size", [50, 5000])
def test_streams_come_move_and_go(vocab_size: int) -> None:
    chance = random.Random(vocab_size)
    generator = torch.Generator().manual_seed(0)
    streams = Streams(SLOTS, vocab_size, "cpu")
    present: dict[int, tuple[Stream, int]] = {}  # by slot, with the tokens drawn so far
    for _ in range(150):
        for _ in range(chance.randrange(3)):
            slot, other = chance.sample(range(SLOTS), 2)
            match chance.randrange(4):
                case 0:
                    present[slot] = (stream(chance), 0)
                    streams.put(slot, present[slot][0])
                case 1 if slot in present:
                    streams.move(slot, other)
                    present[other] = present.pop(slot)
                case 2 if {slot, other} <= present.keys():
                    streams.move(slot, other, swap=True)
                    present[slot], present[other] = present[other], present[slot]
                case 3:
                    present.pop(slot, None)
        rows = [slot for slot in range(SLOTS) if slot in present and chance.random() < 0.8]
        if not rows:
            continue
        logits = torch.randn(len(rows), vocab_size, generator=generator)
        drawn = streams.draw(logits, np.array(rows), np.array([present[row][1] for row in rows]))
        for row, token, logit in zip(rows, drawn.tolist(), logits, strict=True):
            one, position = present[row]
            keys = keys_to_torch(row_keys([(one.seed, one.rollout, one.start + position)]))
            assert token == sample(logit[None], keys, one.temperature, one.top_k, one.top_p).item()
            present[row] = (one, position + 1)
