"""The delta codec: one run of bytes written as its difference from another. Pure.

    delta   MAGIC, then blocks, whose targets laid end to end are the whole target
    block   width u8 | length u32 | parent u64 | packed u32 x planes | one zstd frame per plane

(little-endian). A block gives the next `length` bytes of the target, at most `BLOCK_BYTES`: words
of `width` bytes (1, 2, 4, 8); each is taken less the parent's word at offset `parent` and
further on, and the residuals' bytes are grouped by significance: first the lowest byte of each
word, and so on. One training step changes low mantissa bits of most weights, and the sign, the
exponent and the high mantissa bits of few, so the upper planes are nearly constant and the lowest
are noise.

The residual of a wider word is the difference of the words as integers, as a zigzag number (small
for a step in either direction). Compared with XOR, it does not blow a step over a power of two up
into many bits: 2 to 4 points smaller on real adapters (benchmarks/delta.py). That of a single byte
is XOR. `NO_PARENT` for an offset compares with nothing.

Promises of `decode`, whatever the bytes: what it returns has exactly the target's size, or a
`DeltaError` comes; it holds a few blocks in memory, and never makes room for a size that a frame
claims and the block does not; the work is bounded by the sizes of delta and target. It does not
promise the right bytes: whoever calls it checks digests. Nothing of the delta says what is written
where.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import zstandard

from echo_p2p.errors import DeltaError

MAGIC = b"echo-p2p delta 1\n"
BLOCK_BYTES = 1 << 20
WIDTHS = (1, 2, 4, 8)
NO_PARENT = 2**64 - 1
MAX_SEGMENTS = 1 << 17
"""Blocks that a delta may have beyond those that its size asks for."""

_LEVEL = 1
"""Higher ones are several times slower and gain under a point on these bytes."""
_HEAD = struct.Struct("<BIQ")
_PACKED = {width: struct.Struct(f"<{width}I") for width in WIDTHS}
_FRAME_OVERHEAD = 64

Words = npt.NDArray[np.unsignedinteger]
Planes = npt.NDArray[np.uint8]
ReadAt = Callable[[int, int], bytes]
"""Bytes at (offset, length)."""


@dataclass(frozen=True)
class Segment:
    """The next `length` bytes of the target: words of `width` bytes, beside the parent's.

    `parent` is the offset in the parent where they are compared, or None to compare with nothing.
    """

    length: int
    width: int
    parent: int | None


# --- encoding -------------------------------------------------------------------------------------


def encode(segments: Iterable[Segment], target: ReadAt, parent: ReadAt) -> Iterator[bytes]:
    """The delta, piece by piece. `segments` cover the target from its first byte to its last."""
    compressor = zstandard.ZstdCompressor(level=_LEVEL, write_content_size=True)
    yield MAGIC
    position = 0
    for segment in segments:
        for start in range(0, segment.length, BLOCK_BYTES):
            length = min(BLOCK_BYTES, segment.length - start)
            words = _words(target(position, length), segment.width)
            where = NO_PARENT
            if segment.parent is not None:
                where = segment.parent + start
                words = _residual(words, _words(parent(where, length), segment.width))
            frames = [compressor.compress(plane.data) for plane in _split(words)]
            yield _HEAD.pack(segment.width, length, where)
            yield _PACKED[segment.width].pack(*map(len, frames))
            yield from frames
            position += length


# --- decoding -------------------------------------------------------------------------------------


def decode(
    read: Callable[[int], bytes], parent: ReadAt, *, parent_bytes: int, target_bytes: int
) -> Iterator[bytes]:
    """The target, a block at a time; DeltaError if these bytes are no delta of that size.

    Args:
        read: the next n bytes of the delta, fewer at its end.
        parent: bytes of the parent; asked only for ranges within it.
        parent_bytes, target_bytes: their sizes, known from their manifests.
    """
    decompressor = zstandard.ZstdDecompressor(max_window_size=BLOCK_BYTES)
    if _exactly(read, len(MAGIC)) != MAGIC:
        raise DeltaError("these bytes are no delta of a form known here.")
    blocks_left = target_bytes // BLOCK_BYTES + MAX_SEGMENTS
    left = target_bytes
    while left:
        width, length, where = _HEAD.unpack(_exactly(read, _HEAD.size))
        blocks_left -= 1
        _check_block(width, length, where, left=left, parent_bytes=parent_bytes)
        if blocks_left < 0:
            raise DeltaError(f"a delta in needlessly many blocks for {target_bytes} bytes.")
        words = _join(_read_planes(read, decompressor, width, length), width)
        if where != NO_PARENT:
            words = _restored(words, _words(parent(where, length), width))
        left -= length
        yield words.tobytes()
    if read(1):
        raise DeltaError("a delta that goes on after the last byte of its target.")


def _check_block(width: int, length: int, where: int, *, left: int, parent_bytes: int) -> None:
    if width not in WIDTHS or length % width or not 0 < length <= BLOCK_BYTES:
        raise DeltaError(f"a delta with a block of {length} bytes in words of {width}.")
    if length > left:
        raise DeltaError(f"a delta of more than its target: {length} bytes where {left} are left.")
    if where != NO_PARENT and where + length > parent_bytes:
        raise DeltaError(
            f"a delta that compares with bytes {where} to {where + length} of a parent "
            f"of {parent_bytes}."
        )


def _read_planes(
    read: Callable[[int], bytes],
    decompressor: zstandard.ZstdDecompressor,
    width: int,
    length: int,
) -> list[bytes]:
    size = length // width
    packed = _PACKED[width].unpack(_exactly(read, 4 * width))
    most = size + size // 128 + _FRAME_OVERHEAD
    planes = []
    for frame_bytes in packed:
        if frame_bytes > most:
            raise DeltaError(f"a delta with {frame_bytes} bytes for a plane of {size}.")
        planes.append(_unpack(decompressor, _exactly(read, frame_bytes), size))
    return planes


def _unpack(decompressor: zstandard.ZstdDecompressor, frame: bytes, size: int) -> bytes:
    """The plane in a zstd frame: what it claims is compared before any room is made for it."""
    try:
        claimed = zstandard.get_frame_parameters(frame).content_size
        plane = decompressor.decompress(frame, allow_extra_data=False) if claimed == size else b""
    except zstandard.ZstdError as error:
        raise DeltaError(f"a delta with a plane that does not unpack: {error}.") from error
    if len(plane) != size:
        raise DeltaError(f"a delta with a plane of {claimed} bytes in place of {size}.")
    return plane


def _exactly(read: Callable[[int], bytes], size: int) -> bytes:
    data = read(size)
    if len(data) != size:
        raise DeltaError("a delta that ends before its target does.")
    return data


# --- words ----------------------------------------------------------------------------------------


def _words(data: bytes, width: int) -> Words:
    return np.frombuffer(data, dtype=f"<u{width}")


def _residual(words: Words, parent: Words) -> Words:
    if words.itemsize == 1:
        return words ^ parent
    step = words - parent
    sign = step.view(f"<i{words.itemsize}") >> (8 * words.itemsize - 1)  # 0, or all ones
    step <<= words.dtype.type(1)
    step ^= sign.view(words.dtype)
    return step


def _restored(residual: Words, parent: Words) -> Words:
    if residual.itemsize == 1:
        return residual ^ parent
    one = residual.dtype.type(1)
    sign = residual & one
    np.negative(sign, out=sign)  # 0, or all ones
    words = residual >> one
    words ^= sign
    words += parent
    return words


def _split(words: Words) -> Planes:
    """Bytes by significance, [width, words]."""
    return np.ascontiguousarray(words.view(np.uint8).reshape(len(words), words.itemsize).T)


def _join(planes: list[bytes], width: int) -> Words:
    joined = np.empty((len(planes[0]), width), dtype=np.uint8)
    for place, plane in enumerate(planes):
        joined[:, place] = np.frombuffer(plane, dtype=np.uint8)
    return joined.reshape(-1).view(f"<u{width}")
