"""The delta codec: bit for bit, whatever the bytes; and what is no delta is a DeltaError."""

from __future__ import annotations

import io
import json
import random
import struct
import tracemalloc
from collections.abc import Sequence
from contextlib import suppress

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from message_strategies import damaged

from echo_p2p.artifact import delta as codec
from echo_p2p.artifact.delta import BLOCK_BYTES, MAGIC, NO_PARENT, WIDTHS, Segment, decode, encode
from echo_p2p.artifact.segments import plan, tensors_in
from echo_p2p.errors import DeltaError
from echo_p2p.wire import FileEntry

Files = dict[str, bytes]


def at(data: bytes) -> codec.ReadAt:
    def read(offset: int, length: int) -> bytes:
        assert 0 <= offset <= offset + length <= len(data)
        return data[offset : offset + length]

    return read


def encoded(segments: Sequence[Segment], target: bytes, parent: bytes) -> bytes:
    return b"".join(encode(segments, at(target), at(parent)))


def decoded(delta: bytes, parent: bytes, size: int) -> bytes:
    read = io.BytesIO(delta).read
    return b"".join(decode(read, at(parent), parent_bytes=len(parent), target_bytes=size))


def entries(files: Files) -> list[FileEntry]:
    return [FileEntry(name=name, size=len(data)) for name, data in files.items()]


def planned(target: Files, parent: Files) -> list[Segment]:
    new, old = b"".join(target.values()), b"".join(parent.values())
    return list(plan(entries(target), at(new), entries(parent), at(old)))


def there_and_back(target: Files, parent: Files) -> bytes:
    """The delta between two folders, which decodes to the second again."""
    new, old = b"".join(target.values()), b"".join(parent.values())
    delta = encoded(planned(target, parent), new, old)
    assert decoded(delta, old, len(new)) == new
    return delta


def safetensors(tensors: dict[str, tuple[str, bytes]], **meta: str) -> bytes:
    header, position = {"__metadata__": meta} if meta else {}, 0
    for name, (dtype, data) in tensors.items():
        ends = [position, position + len(data)]
        header[name] = {"dtype": dtype, "shape": [len(data)], "data_offsets": ends}  # type: ignore[dict-item]
        position += len(data)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + b"".join(data for _, data in tensors.values())


def weights(seed: int, count: int = 3000) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 0.05, count).astype("<f4")


def stepped(before: np.ndarray, seed: int = 9, size: float = 1e-4) -> np.ndarray:
    return (before + size * np.random.default_rng(seed).normal(0, 1, len(before))).astype("<f4")


# --- what comes back --------------------------------------------------------------------------


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[Segment], bytes, bytes]:
    """Segments over a target that is random, or is the parent with some bytes changed."""
    rng = random.Random(draw(st.integers(0, 2**32)))
    parent = rng.randbytes(draw(st.integers(0, 600)))
    segments, target = [], b""
    for _ in range(draw(st.integers(0, 5))):
        width = draw(st.sampled_from(WIDTHS))
        length = width * draw(st.integers(1, 40))
        where = None
        part = rng.randbytes(length)
        if length <= len(parent) and draw(st.booleans()):
            where = rng.randrange(len(parent) - length + 1)
            near = bytearray(parent[where : where + length])
            near[rng.randrange(length)] ^= draw(st.integers(0, 255))
            part = bytes(near) if draw(st.booleans()) else part
        segments.append(Segment(length, width, where))
        target += part
    return segments, target, parent


@given(cases())
@settings(max_examples=300)
def test_whatever_goes_in_comes_out(case: tuple[list[Segment], bytes, bytes]) -> None:
    segments, target, parent = case
    assert decoded(encoded(segments, target, parent), parent, len(target)) == target


@pytest.mark.parametrize("width", WIDTHS)
def test_every_word_comes_out_beside_every_other(width: int) -> None:
    edges = [0, 1, 2, (1 << 8 * width - 1) - 1, 1 << 8 * width - 1, (1 << 8 * width) - 1]
    edges += [random.Random(width).getrandbits(8 * width) for _ in range(20)]
    pairs = [(a, b) for a in edges for b in edges]
    parent = b"".join(a.to_bytes(width, "little") for a, _ in pairs)
    target = b"".join(b.to_bytes(width, "little") for _, b in pairs)
    delta = encoded([Segment(len(target), width, 0)], target, parent)
    assert decoded(delta, parent, len(target)) == target


def test_nan_infinity_and_signed_zero_keep_their_bits() -> None:
    odd = np.array([0x7FC00001, 0xFFC12345, 0x7F800000, 0xFF800000, 0x80000000, 1], "<u4")
    new, old = odd.tobytes(), weights(1, len(odd)).tobytes()
    for target, parent in ((new, old), (old, new)):
        one = {"a.safetensors": safetensors({"w": ("F32", target)})}
        there_and_back(one, {"a.safetensors": safetensors({"w": ("F32", parent)})})


def test_large_segments_are_cut_into_blocks() -> None:
    rng = random.Random(1)
    parent = rng.randbytes(2 * BLOCK_BYTES + 808)
    target = bytearray(parent)
    target[::4096] = bytes(len(target[::4096]))
    sizes = []
    delta = encoded([Segment(len(parent), 8, 0)], bytes(target), parent)
    read = io.BytesIO(delta).read
    for block in decode(read, at(parent), parent_bytes=len(parent), target_bytes=len(target)):
        sizes.append(len(block))
    assert sizes == [BLOCK_BYTES, BLOCK_BYTES, 808]
    assert len(delta) < len(target) / 50


# --- what is compared with what ----------------------------------------------------------------


def test_a_training_step_is_much_smaller_than_the_snapshot() -> None:
    old, new = weights(1), stepped(weights(1))
    before = {"a.safetensors": safetensors({"w": ("F32", old.tobytes())})}
    after = {"a.safetensors": safetensors({"w": ("F32", new.tobytes())})}
    assert len(there_and_back(after, before)) < 0.7 * len(after["a.safetensors"])
    assert len(there_and_back(after, after)) < 300


def test_tensors_are_found_by_name_wherever_they_lie() -> None:
    parts = {name: ("F32", weights(seed).tobytes()) for seed, name in enumerate("abcd")}
    moved = {name: parts[name] for name in "dbca"}
    delta = there_and_back(
        {"x": b"front", "s.safetensors": safetensors(moved)},
        {"s.safetensors": safetensors(parts, format="pt")},
    )
    assert len(delta) < 800


def test_small_tensors_side_by_side_become_one_segment() -> None:
    parts = {f"layer{i}": ("BF16", weights(i, 50).tobytes()) for i in range(40)}
    one = {"s.safetensors": safetensors(parts)}
    segments = planned(one, one)
    assert [segment.width for segment in segments] == [1, 2]


def test_another_type_or_size_is_compared_with_nothing() -> None:
    data = weights(1, 64).tobytes()
    before = {"s.safetensors": safetensors({"w": ("F32", data), "b": ("F16", data)})}
    after = {"s.safetensors": safetensors({"w": ("BF16", data), "b": ("F16", data + bytes(2))})}
    there_and_back(after, before)
    assert [s.parent for s in planned(after, before) if s.width > 1] == [None]


def test_many_files_with_some_new_and_some_gone() -> None:
    shards = {f"model-{i}.safetensors": weights(i) for i in range(3)}
    before = {name: safetensors({"w": ("F32", w.tobytes())}) for name, w in shards.items()}
    after = {name: safetensors({"w": ("F32", stepped(w).tobytes())}) for name, w in shards.items()}
    del after["model-0.safetensors"]
    after |= {"config.json": b"{}", "new.safetensors": before["model-1.safetensors"]}
    there_and_back(after, {**before, "config.json": b"{ }"})


@given(st.data())
@settings(max_examples=200)
def test_any_two_folders(data: st.DataObject) -> None:
    def folder() -> Files:
        files = {}
        for name in data.draw(st.lists(st.sampled_from("abc"), unique=True)):
            seed = data.draw(st.integers(0, 3))
            types = data.draw(st.lists(st.sampled_from(["F32", "BF16", "I64", "U8", "F4"])))
            tensors = {f"t{i}": (t, weights(seed, 10).tobytes()) for i, t in enumerate(types)}
            whole = safetensors(tensors)
            files[f"{name}.safetensors"] = (
                data.draw(damaged(whole)) if data.draw(st.booleans()) else whole
            )
        return files

    there_and_back(folder(), folder())


@pytest.mark.parametrize(
    "header",
    [
        b"", b"{", b"[]", b"7", b'{"w": 7}', b'{"w": {"dtype": "F32", "shape": [1]}}',
        b'{"w": {"dtype": "F32", "shape": ["x"], "data_offsets": [0, 4]}}',
        b'{"w": {"dtype": "F32", "shape": [1], "data_offsets": [-4, 4]}}',
        b'{"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 5]}}',
        b'{"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4000]}}',
        b'{"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, true]}}',
        b'{"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]},'
        b' "b": {"dtype": "U8", "shape": [4], "data_offsets": [3, 7]}}',
        b"\xff\xfe", b"[" * 100_000,
    ],
)  # fmt: skip
def test_a_header_that_is_not_sound_says_nothing(header: bytes) -> None:
    assert tensors_in(header, len(header) + 100) == []


# --- what is refused ----------------------------------------------------------------------------


def block(
    *, width: int = 4, length: int = 400, where: int = NO_PARENT, frames: list[bytes] | None = None
) -> bytes:
    """A block as its arguments say, sound or not."""
    if frames is None:
        frames = [zstandard.compress(bytes(length // width))] * width
    head = struct.pack("<BIQ", width, length, where)
    return head + struct.pack(f"<{len(frames)}I", *map(len, frames)) + b"".join(frames)


def test_a_sound_block_is_taken() -> None:
    assert decoded(MAGIC + block(), b"", 400) == bytes(400)


PLAIN = zstandard.compress(bytes(100))
UNSIZED = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(100))


@pytest.mark.parametrize(
    "delta",
    {
        "empty": b"",
        "another magic": b"echo-p2p delta 2\n" + block(),
        "nothing after it": MAGIC,
        "width 0": MAGIC + block(width=0, frames=[]),
        "width 3": MAGIC + block(width=3, length=399),
        "no bytes": MAGIC + block(length=0),
        "half a word": MAGIC + block(length=398),
        "more than the target": MAGIC + block(length=404),
        "less than the target": MAGIC + block(length=396),
        "goes on": MAGIC + block() + b"\0",
        "beyond the parent": MAGIC + block(where=1),
        "far beyond the parent": MAGIC + block(where=2**64 - 2),
        "no zstd": MAGIC + block(frames=[b"x" * 20] * 4),
        "empty frame": MAGIC + block(frames=[b""] * 4),
        "a plane too short": MAGIC + block(frames=[zstandard.compress(bytes(99))] * 4),
        "a plane too long": MAGIC + block(frames=[zstandard.compress(bytes(101))] * 4),
        "a frame without a size": MAGIC + block(frames=[UNSIZED] * 4),
        "two frames in one": MAGIC + block(frames=[PLAIN + PLAIN] * 4),
        "a frame cut short": MAGIC + block(frames=[PLAIN[:-1]] * 4),
        "frames too large": MAGIC + struct.pack("<BIQ4I", 4, 400, NO_PARENT, *[2**32 - 1] * 4),
    }.items(),
    ids=lambda item: item[0],
)
def test_what_is_no_delta_is_refused(delta: tuple[str, bytes]) -> None:
    with pytest.raises(DeltaError):
        decoded(delta[1], bytes(400), 400)


def test_a_delta_cut_short_anywhere_is_refused() -> None:
    parent, target = weights(1, 100).tobytes(), stepped(weights(1, 100)).tobytes()
    delta = encoded([Segment(400, 4, 0)], target, parent)
    for end in range(len(delta)):
        with pytest.raises(DeltaError):
            decoded(delta[:end], parent, 400)


@given(st.data())
@settings(max_examples=400)
def test_a_damaged_delta_is_refused_or_has_the_right_size(data: st.DataObject) -> None:
    parent, target = weights(1, 100).tobytes(), stepped(weights(1, 100)).tobytes()
    delta = data.draw(damaged(encoded([Segment(400, 4, 0)], target, parent)))
    with suppress(DeltaError):
        assert len(decoded(delta, parent, 400)) == 400


@pytest.mark.parametrize("claimed", [50_000_000, 100_000])
def test_a_bomb_does_not_go_off(claimed: int) -> None:
    """50 MB of zeros in a few kB, in a frame that says so, or that says what is expected."""
    bomb = bytearray(zstandard.compress(bytes(50_000_000)))
    bomb[6:10] = claimed.to_bytes(4, "little")  # RFC 8878: after magic, descriptor and window
    assert zstandard.get_frame_parameters(bytes(bomb)).content_size == claimed
    delta = MAGIC + block(length=400_000, frames=[bytes(bomb)] * 4)
    tracemalloc.start()
    with pytest.raises(DeltaError, match=r"in place of 100000|does not unpack"):
        decoded(delta, b"", 400_000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2_000_000


def test_endless_little_blocks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "MAX_SEGMENTS", 10)
    tiny = block(width=1, length=1)
    assert decoded(MAGIC + 10 * tiny, b"", 10) == bytes(10)
    with pytest.raises(DeltaError, match="needlessly many"):
        decoded(MAGIC + 11 * tiny, b"", 11)
