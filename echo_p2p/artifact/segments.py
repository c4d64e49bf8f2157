"""What of an artifact is compared with what of its parent. Pure; safetensors are looked into.

A tensor is compared with the parent's tensor of the same name, type and shape in the file of the
same name, word by word, wherever the two lie in their files; a file of another format, or one
that only claims to be safetensors, byte by byte with one of the same name and size. What is like
nothing in the parent is compared with nothing. Neighbours that are treated alike become one
segment, so that small tensors share a block.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from echo_p2p.artifact.delta import ReadAt, Segment
from echo_p2p.wire import FileEntry

MAX_HEADER_BYTES = 16 << 20
_LENGTH_BYTES = 8
_WIDTHS = {
    **dict.fromkeys(("F64", "I64", "U64"), 8),
    **dict.fromkeys(("F32", "I32", "U32"), 4),
    **dict.fromkeys(("BF16", "F16", "I16", "U16"), 2),
}


@dataclass(frozen=True)
class Tensor:
    """A tensor in a file: `begin` and `end` are offsets in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def width(self) -> int:
        return _WIDTHS.get(self.dtype, 1)

    @property
    def like(self) -> tuple[str, str, tuple[int, ...], int]:
        """What a tensor must share to be compared with this one."""
        return self.name, self.dtype, self.shape, self.end - self.begin


def plan(
    target: Sequence[FileEntry], read: ReadAt, parent: Sequence[FileEntry], read_parent: ReadAt
) -> Iterator[Segment]:
    """Segments that cover the target's files, laid end to end, beside the parent's."""
    return _merged(_pieces(target, read, parent, read_parent))


def _pieces(
    target: Sequence[FileEntry], read: ReadAt, parent: Sequence[FileEntry], read_parent: ReadAt
) -> Iterator[Segment]:
    starts = accumulate((file.size for file in parent), initial=0)
    before = {file.name: (start, file) for start, file in zip(starts, parent, strict=False)}
    position = 0
    for file in target:
        tensors = _tensors_of(file, position, read)
        start, old = before.get(file.name, (0, None))
        if old is None:
            yield from _cut(file.size, tensors, {}, None)
        else:
            olds = {one.like: start + one.begin for one in _tensors_of(old, start, read_parent)}
            rest = start if old.size == file.size else None
            yield from _cut(file.size, tensors, olds, rest)
        position += file.size


def _cut(
    size: int, tensors: Sequence[Tensor], olds: dict[Any, int], rest: int | None
) -> Iterator[Segment]:
    """One file. `rest`: where the parent's file begins, if bytes outside tensors compare with it.

    A tensor that does not begin at a multiple of its width is compared all the same: words are
    counted from its first byte.
    """
    at = 0
    for tensor in tensors:
        if tensor.begin > at:
            yield Segment(tensor.begin - at, 1, None if rest is None else rest + at)
        yield Segment(tensor.end - tensor.begin, tensor.width, olds.get(tensor.like))
        at = tensor.end
    if size > at:
        yield Segment(size - at, 1, None if rest is None else rest + at)


def _merged(pieces: Iterable[Segment]) -> Iterator[Segment]:
    last: Segment | None = None
    for piece in pieces:
        if last is None:
            last = piece
        elif piece.width == last.width and piece.parent == _end(last):
            last = Segment(last.length + piece.length, last.width, last.parent)
        else:
            yield last
            last = piece
    if last is not None:
        yield last


def _end(segment: Segment) -> int | None:
    return None if segment.parent is None else segment.parent + segment.length


def _tensors_of(file: FileEntry, start: int, read: ReadAt) -> list[Tensor]:
    """Tensors of a file that begins at offset `start`; none if it is not sound safetensors."""
    if not file.name.endswith(".safetensors") or file.size < _LENGTH_BYTES:
        return []
    length = int.from_bytes(read(start, _LENGTH_BYTES), "little")
    if length > min(MAX_HEADER_BYTES, file.size - _LENGTH_BYTES):
        return []
    return tensors_in(read(start + _LENGTH_BYTES, length), file.size)


def tensors_in(header: bytes, file_bytes: int) -> list[Tensor]:
    """The tensors that a safetensors header describes, in order; none if it is not sound."""
    try:
        entries = json.loads(header)
        data = _LENGTH_BYTES + len(header)
        tensors = [
            _tensor(name, entry, data) for name, entry in entries.items() if name != "__metadata__"
        ]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return []
    tensors = sorted((one for one in tensors if one.end > one.begin), key=lambda one: one.begin)
    at = _LENGTH_BYTES + len(header)
    for tensor in tensors:
        if tensor.begin < at or (tensor.end - tensor.begin) % tensor.width:
            return []
        at = tensor.end
    return tensors if at <= file_bytes else []


def _tensor(name: str, entry: Any, data: int) -> Tensor:
    begin, end = entry["data_offsets"]
    if not all(type(each) is int for each in (begin, end, *entry["shape"])):
        raise TypeError("offsets and shapes are integers.")
    return Tensor(name, str(entry["dtype"]), tuple(entry["shape"]), data + begin, data + end)
