"""Keys and values of answers that may go on, kept from one turn to the next.

A policy reads what it was told after a turn only from where the turn ended: everything before has
been read. Promises: what is taken out belongs to exactly the tokens it is taken for; no more than
`max_bytes` are kept, the newest of all; who kept nothing gets None and reads again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Stream = tuple[int, int, int]
"""Whose: version, seed of the lease, index in the group."""


@dataclass(frozen=True)
class Prefix:
    """`tokens` and, for each layer, their keys and values: the engine's arrays, [heads, tokens,
    width]."""

    tokens: list[int]
    layers: list[tuple[Any, Any]]

    @property
    def size(self) -> int:
        """Bytes of the arrays."""
        return sum(part.nbytes for layer in self.layers for part in layer)


class Prefixes:
    """What is kept, by stream. `read` and `reused` count tokens of prompts so far."""

    def __init__(self, max_bytes: int) -> None:
        self.read = 0
        self.reused = 0
        self._max_bytes = max_bytes
        self._kept: OrderedDict[Stream, Prefix] = OrderedDict()
        self._bytes = 0

    @property
    def size(self) -> int:
        """Bytes that are kept."""
        return self._bytes

    def __len__(self) -> int:
        return len(self._kept)

    def put(self, stream: Stream, prefix: Prefix) -> None:
        """Keep a prefix; the oldest make room for it."""
        self.drop(stream)
        if prefix.size > self._max_bytes:
            return
        self._kept[stream] = prefix
        self._bytes += prefix.size
        while self._bytes > self._max_bytes:
            self.drop(next(iter(self._kept)))

    def take(self, stream: Stream, tokens: Sequence[int]) -> Prefix | None:
        """What is kept of a stream, if it is the beginning of these tokens and not all of them."""
        prefix = self._kept.get(stream)
        if prefix is None or len(prefix.tokens) >= len(tokens):
            return None
        if list(tokens[: len(prefix.tokens)]) != prefix.tokens:
            return None
        self.drop(stream)
        return prefix

    def drop(self, stream: Stream) -> None:
        """Forget a stream."""
        prefix = self._kept.pop(stream, None)
        if prefix is not None:
            self._bytes -= prefix.size

    def forget(self, version: int) -> None:
        """Forget what a version has read."""
        for stream in [stream for stream in self._kept if stream[0] == version]:
            self.drop(stream)

    def clear(self) -> None:
        """Forget all."""
        self._kept.clear()
        self._bytes = 0
