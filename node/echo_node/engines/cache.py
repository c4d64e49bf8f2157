"""Keys and values of a batch whose rows come and go while it runs.

All rows end at the same column: what a row has fills the columns before `end`, and each step writes
one column for all of them. So the columns in use are as many as the longest row that is there now
has tokens; when the buffer's end is reached they are moved to its beginning, or into a larger one.
A row's other columns hold numbers of others, which its mask keeps out, and never a NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

_ROOM = 32  # columns that a buffer has to spare, at least


class Columns:
    """Which columns of all layers are in use: [start, end). `mask` [rows, capacity] is bool."""

    def __init__(self, device: torch.device) -> None:
        self.start = self.end = 0
        self.capacity = 0
        self.mask = torch.zeros(0, 0, dtype=torch.bool, device=device)


class _SlotLayer(DynamicLayer):  # type: ignore[misc]
    """One layer's buffers [rows, heads, capacity, width]; `update` writes a step's new columns."""

    def __init__(self, columns: Columns) -> None:
        super().__init__()
        self._columns = columns
        self.buffers: list[torch.Tensor] = []

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        at = self._columns
        new = key_states.shape[-2]
        if not self.buffers:  # the first tokens of a cache that nothing was put in
            self.lazy_initialization(key_states, value_states)
            self.buffers = [
                states.new_zeros(*states.shape[:2], at.capacity, states.shape[-1])
                for states in (key_states, value_states)
            ]
        for buffer, states in zip(self.buffers, (key_states, value_states), strict=True):
            buffer[:, :, at.end : at.end + new] = states
        self.keys, self.values = (buffer[:, :, at.start : at.end + new] for buffer in self.buffers)
        return self.keys, self.values


class SlotCache:
    """What a model's layers have of all rows, and the columns that are in use."""

    def __init__(self, config: Any, device: torch.device) -> None:
        self.columns = Columns(device)
        self.past = DynamicCache(config=config)
        self.past.layers = [_SlotLayer(self.columns) for _ in self.past.layers]

    @property
    def width(self) -> int:
        """Columns in use."""
        return self.columns.end - self.columns.start

    @property
    def mask(self) -> torch.Tensor:
        """Which of the columns in use are each row's own: bool [rows, width]."""
        return self.columns.mask[:, self.columns.start : self.columns.end]

    def layers(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Keys and values of the columns in use, for each layer: [rows, heads, width, size]."""
        span = slice(self.columns.start, self.columns.end)
        return [
            (layer.buffers[0][:, :, span], layer.buffers[1][:, :, span])
            for layer in self.past.layers
        ]

    def begin(self, rows: int, columns: int) -> None:
        """Empty, with room for so many columns."""
        at = self.columns
        at.start, at.end, at.capacity = 0, 0, columns
        at.mask = at.mask.new_zeros(rows, columns)

    def reserve(self, before: int, after: int) -> None:
        """Make room: `before` columns in all that end at `end`, and `after` behind them."""
        at = self.columns
        if at.end >= before and at.end + after <= at.capacity:
            return
        width, wanted = self.width, max(before, self.width)
        capacity = at.capacity
        if wanted + max(after, wanted // 4, _ROOM) > capacity:
            capacity = wanted + max(after, wanted // 2, _ROOM)
        span, target = slice(at.start, at.end), slice(wanted - width, wanted)
        for layer in self.past.layers:
            layer.buffers = [_moved(one, span, target, capacity, 2) for one in layer.buffers]
        at.mask = _moved(at.mask, span, target, capacity, 1)
        at.start, at.end, at.capacity = target.start, target.stop, capacity

    def advance(self, new: int, longest: int) -> None:
        """The model has written `new` columns; no row has more than `longest` tokens now."""
        self.columns.end += new
        self.columns.start = max(self.columns.start, self.columns.end - longest)

    def select(self, rows: torch.Tensor) -> None:
        """Go on with these rows, in this order; one may be there several times."""
        for layer in self.past.layers:
            layer.buffers = [buffer[rows] for buffer in layer.buffers]
        self.columns.mask = self.columns.mask[rows]

    def put(self, rows: torch.Tensor, other: SlotCache, which: torch.Tensor) -> None:
        """Make `rows` copies of the rows `which` of another cache, ending where all end."""
        at, width = self.columns, other.width
        self.reserve(width, 1)
        at.start = min(at.start, at.end - width)
        span = slice(at.end - width, at.end)
        for mine, (keys, values) in zip(self.past.layers, other.layers(), strict=True):
            mine.buffers[0][rows, :, span] = keys[which]
            mine.buffers[1][rows, :, span] = values[which]
        at.mask[rows] = False
        at.mask[rows, span] = other.mask[which]

    def adopt(self, other: SlotCache, which: torch.Tensor) -> None:
        """Become copies of the rows `which` of another cache, with room to go on."""
        width = other.width
        self.begin(len(which), width + max(_ROOM, width // 2))
        self.columns.end = width
        for mine, (keys, values) in zip(self.past.layers, other.layers(), strict=True):
            if not mine.buffers:
                mine.lazy_initialization(keys, values)
            mine.buffers = [
                _moved(part[which], slice(0, width), slice(0, width), self.columns.capacity, 2)
                for part in (keys, values)
            ]
        self.columns.mask[:, :width] = other.mask[which]


def fill(cache: SlotCache, kept: Sequence[Any], rows: int, columns: int) -> None:
    """Begin a cache with what is kept of each row (`prefixes.Prefix` or None), on the right.

    Args:
        columns: what will be written besides.
    """
    width = max((len(one.tokens) for one in kept if one), default=0)
    cache.begin(rows, width + columns)
    cache.columns.end = width
    some = next((one for one in kept if one), None)
    if some is None:
        return
    for number, layer in enumerate(cache.past.layers):
        parts = some.layers[number]
        layer.lazy_initialization(*(part[None] for part in parts))
        layer.buffers = [
            part.new_zeros(rows, part.shape[0], width + columns, part.shape[2]) for part in parts
        ]
        for row, one in enumerate(kept):
            if one is not None:
                for part, buffer in zip(one.layers[number], layer.buffers, strict=True):
                    buffer[row, :, width - len(one.tokens) : width] = part
    for row, one in enumerate(kept):
        if one is not None:
            cache.columns.mask[row, width - len(one.tokens) : width] = True


def _moved(
    tensor: torch.Tensor, span: slice, target: slice, capacity: int, axis: int
) -> torch.Tensor:
    """The columns `span` of a buffer at `target`, in one with `capacity` columns."""
    kept = tensor.narrow(axis, span.start, span.stop - span.start)
    if capacity == tensor.shape[axis]:
        kept = kept.clone()  # the two may overlap
    else:
        shape = list(tensor.shape)
        shape[axis] = capacity
        tensor = tensor.new_zeros(shape)
    tensor.narrow(axis, target.start, target.stop - target.start).copy_(kept)
    return tensor
