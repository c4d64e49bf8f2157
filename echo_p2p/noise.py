"""The noise that tokens are drawn with: standard Gumbel noise that is a function of its place.

Promise: the noise is bit-identical in numpy and torch, on any device. It is built from 32-bit
integer arithmetic and from single IEEE-754 float32 additions, multiplications and divisions, one
array operation each; no library logarithm is called, since those differ in the last bit between
libraries. Its error against the exact logarithm is below 4e-6 (tests/unit/test_sampling.py).

Hash: two rounds of a 32-bit integer mix (shifts and multipliers found with C. Wellons' "Hash
Function Prospector") over the token id, each keyed with one half of a 64-bit row key; the row key
comes from splitmix64 (Steele et al., OOPSLA 2014) over seed, index and position.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

_MASK64 = (1 << 64) - 1
_LN2 = 0.6931471805599453


def _splitmix64(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & _MASK64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK64
    return x ^ (x >> 31)


def row_key(seed: int, index: int, position: int) -> tuple[int, int]:
    """The two 32-bit keys of one row of noise: one answer (`index`) at one `position`."""
    state = _splitmix64(seed & _MASK64)
    state = _splitmix64(state ^ index)
    state = _splitmix64(state ^ position)
    return state >> 32, state & 0xFFFFFFFF


def row_keys(rows: Sequence[tuple[int, int, int]]) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """Keys of many rows (seed, index, position): shape [rows, 2], uint32."""
    return keys_at(*np.asarray(rows, dtype=np.uint64).reshape(len(rows), 3).T)


def keys_at(seeds: Any, indices: Any, positions: Any) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """`row_key` of arrays that broadcast against each other: their shape + [2], uint32."""
    state: Any = np.zeros(1, dtype=np.uint64)  # an array: NumPy warns of overflow in scalars
    for part in (seeds, indices, positions):
        x = (state ^ np.asarray(part, dtype=np.uint64)) + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state = x ^ (x >> np.uint64(31))
    return np.stack([state >> np.uint64(32), state & np.uint64(0xFFFFFFFF)], -1).astype(np.uint32)


def gumbel_numpy(
    keys: np.ndarray[Any, np.dtype[np.uint32]], vocab_size: int
) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Gumbel noise, float32 [rows, vocab_size], for keys [rows, 2] from `row_keys`."""
    x: Any = np.arange(vocab_size, dtype=np.uint32)[None, :] ^ keys[:, :1]
    for key in (None, keys[:, 1:]):
        if key is not None:
            x = x ^ key
        x = x ^ (x >> np.uint32(16))
        x = x * np.uint32(0x21F0AAAD)
        x = x ^ (x >> np.uint32(15))
        x = x * np.uint32(0x735A2D97)
        x = x ^ (x >> np.uint32(15))
    return gumbel_of_bits(x.view(np.int32), Numpy)  # type: ignore[no-any-return]


def gumbel_torch(keys: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Gumbel noise, float32 [rows, vocab_size], on the device of `keys` (int32 [rows, 2])."""
    return gumbel_of_bits(hash_torch(keys, vocab_size), Torch)  # type: ignore[no-any-return]


def hash_torch(keys: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """The hashed integers (as int32) that the noise of each token is made of."""
    import torch

    x = torch.arange(vocab_size, dtype=torch.int32, device=keys.device)[None, :] ^ keys[:, :1]
    for key in (None, keys[:, 1:]):
        if key is not None:
            x ^= key
        x ^= (x >> 16).bitwise_and_(0xFFFF)  # int32 shifts drag the sign along: mask it off
        x *= 0x21F0AAAD
        x ^= (x >> 15).bitwise_and_(0x1FFFF)
        x *= 0x735A2D97
        x ^= (x >> 15).bitwise_and_(0x1FFFF)
    return x


class Numpy:
    """The few operations that numpy and torch spell differently."""

    where = staticmethod(np.where)

    @staticmethod
    def to_float(x: Any) -> Any:
        return x.astype(np.float32)

    @staticmethod
    def to_int(x: Any) -> Any:
        return x.astype(np.int32)

    @staticmethod
    def bits(x: Any) -> Any:
        return x.view(np.int32)

    @staticmethod
    def from_bits(x: Any) -> Any:
        return x.view(np.float32)

    @staticmethod
    def f32(value: float) -> Any:
        return np.float32(value)


class Torch:
    """See `Numpy`."""

    @staticmethod
    def where(condition: Any, a: Any, b: Any) -> Any:
        import torch

        return torch.where(condition, a, b)

    @staticmethod
    def to_float(x: Any) -> Any:
        import torch

        return x.to(torch.float32)

    @staticmethod
    def to_int(x: Any) -> Any:
        import torch

        return x.to(torch.int32)

    @staticmethod
    def bits(x: Any) -> Any:
        import torch

        return x.view(torch.int32)

    @staticmethod
    def from_bits(x: Any) -> Any:
        import torch

        return x.view(torch.float32)

    @staticmethod
    def f32(value: float) -> Any:
        return float(np.float32(value))


def _atanh_series(s: Any, ops: Any, terms: int) -> Any:
    """2 * atanh(s) for small |s|, by Horner's rule on the odd series."""
    q = s * s
    total = q * ops.f32(1.0 / (2 * terms + 1))
    for k in range(terms - 1, 0, -1):
        total = (total + ops.f32(1.0 / (2 * k + 1))) * q
    return (total + ops.f32(1.0)) * (s + s)


def _log(y: Any, ops: Any) -> Any:
    """ln(y) of positive normal float32: exponent * ln 2 + ln(mantissa in [0.75, 1.5))."""
    bits = ops.bits(y)
    exponent = ((bits >> 23) & 0xFF) - 127
    mantissa = ops.from_bits((bits & 0x7FFFFF) | 0x3F800000)
    high = mantissa >= ops.f32(1.5)
    mantissa = ops.where(high, mantissa * ops.f32(0.5), mantissa)
    exponent = ops.to_float(exponent) + ops.to_float(high)
    s = (mantissa - ops.f32(1.0)) / (mantissa + ops.f32(1.0))
    return exponent * ops.f32(_LN2) + _atanh_series(s, ops, 5)


def gumbel_of_bits(x: Any, ops: Any) -> Any:
    """-ln(-ln(u)) with u = (n + 1/2) / 2^32, where n is the int32 `x` read as unsigned."""
    upper = x < 0  # n >= 2^31, so u > 1/2: work with w = 1 - u, which float32 holds exactly enough
    # -1 - x = 2^32 - 1 - n for the upper half
    small = ops.where(upper, -1 - x, x)
    y = ops.to_float(small) + ops.f32(0.5)
    lower_e = ops.f32(32 * _LN2) - _log(y, ops)
    w = y * ops.f32(2.0**-32)
    upper_e = _atanh_series(w / (ops.f32(2.0) - w), ops, 8)
    return ops.f32(0.0) - _log(ops.where(upper, upper_e, lower_e), ops)


def keys_to_torch(
    keys: np.ndarray[Any, np.dtype[np.uint32]], device: torch.device | str = "cpu"
) -> torch.Tensor:
    """Row keys as the int32 tensor that the torch functions take (same bits)."""
    import torch

    return torch.from_numpy(keys.view(np.int32).copy()).to(device)
