"""Sets of chunk indices.

In a process a set of chunks is a plain int (bit i set: chunk i is in it), so that union,
intersection and difference are `|`, `&` and `& ~`, quick even for tens of thousands of chunks. On
the wire it is `ceil(count / 8)` bytes, bit i of byte i // 8, least significant first; no bytes at
all stand for the empty set.
"""

from __future__ import annotations

from collections.abc import Iterator

from echo_p2p.errors import WireError


def full(count: int) -> int:
    """Every chunk of an artifact with `count` chunks."""
    return (1 << count) - 1


def to_bytes(bits: int, count: int) -> bytes:
    """The set as it travels."""
    return bits.to_bytes((count + 7) // 8, "little")


def from_bytes(data: bytes, count: int) -> int:
    """A set from a peer; WireError unless it is empty or of exactly `count` chunks."""
    if not data:
        return 0
    bits = int.from_bytes(data, "little")
    if len(data) != (count + 7) // 8 or bits >> count:
        raise WireError(f"a bitmap of {len(data)} bytes does not describe {count} chunks.")
    return bits


def lowest(bits: int) -> int:
    """Smallest index in a set that is not empty."""
    return (bits & -bits).bit_length() - 1


def near(bits: int, start: int) -> int:
    """Smallest index from `start` on in a set that is not empty, or else its smallest of all."""
    above = bits >> start
    return start + lowest(above) if above else lowest(bits)


def indices(bits: int) -> Iterator[int]:
    """Every index in the set, rising."""
    data = bits.to_bytes((bits.bit_length() + 7) // 8, "little")
    for position, byte in enumerate(data):
        while byte:
            yield 8 * position + lowest(byte)
            byte &= byte - 1


def by_rarity(members: int, holdings: list[int]) -> list[int]:
    """`members` split by how many of `holdings` hold each: [none, one, two, more]."""
    once = twice = thrice = 0
    for held in holdings:
        thrice |= twice & held
        twice |= once & held
        once |= held
    return [
        members & ~once,
        members & once & ~twice,
        members & twice & ~thrice,
        members & thrice,
    ]
