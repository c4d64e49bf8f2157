"""What a version must say: token sequences, and the hub's log-probabilities of how they end.

The hub writes them to `canary.json` beside a version's weights, where the version's signed manifest
covers them, and a program that does not know the file passes it over. A node believes its engine
only if it finds the same: wrong weights, a wrong scale or a cache that belongs to other weights
show here before a single answer is spoilt.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from echo_p2p.errors import ManifestError
from echo_p2p.wire import MAX_TOKENS

CANARY_FILE = "canary.json"
MAX_CANARY_BYTES = 1 << 20

TOLERANCES = {"float32": 1e-3, "bfloat16": 0.15}
"""By dtype, nats, of the mean difference of a log-probability.

Two engines in float32 were seen to differ by 4e-5 at most. In bfloat16 a 135M model differs from
itself in float32 by .036 on average, and single tokens by .3, so only the mean says something.
"""

Tokens = Annotated[
    list[Annotated[int, Meta(ge=0, lt=2**31)]], Meta(min_length=2, max_length=MAX_TOKENS)
]


class CanarySequence(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`logprobs` are of the last of these tokens, each given all before it, at temperature 1."""

    tokens: Tokens
    logprobs: Annotated[list[float], Meta(min_length=1, max_length=64)]


class Canary(msgspec.Struct, frozen=True):
    """All sequences, and the most that log-probabilities may differ by on average, in nats."""

    sequences: Annotated[list[CanarySequence], Meta(min_length=1, max_length=64)]
    tolerance: Annotated[float, Meta(gt=0, le=100)]


def write_canary(folder: Path, canary: Canary) -> None:
    """Put a canary beside a version's weights."""
    (folder / CANARY_FILE).write_bytes(msgspec.json.encode(canary))


def read_canary(folder: Path) -> Canary | None:
    """The canary of a version; None if its hub gave it none. ManifestError if it is none."""
    path = folder / CANARY_FILE
    try:
        if not path.is_file():
            return None
        if path.stat().st_size > MAX_CANARY_BYTES:
            raise ManifestError(f"{path} is over {MAX_CANARY_BYTES} bytes.")
        canary = msgspec.json.decode(path.read_bytes(), type=Canary)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ManifestError(f"cannot read {path}: {error}.") from error
    if any(len(one.logprobs) >= len(one.tokens) for one in canary.sequences):
        raise ManifestError(f"{path} has log-probabilities of no token.")
    return canary


def difference(canary: Canary, score: Callable[[Sequence[int]], Sequence[float]]) -> float:
    """Mean difference of the log-probabilities, in nats; infinite if one is not finite.

    Args:
        score: log-probability of each token of a sequence but the first.
    """
    total, count = 0.0, 0
    for one in canary.sequences:
        found = list(score(one.tokens))
        if len(found) != len(one.tokens) - 1 or not all(map(math.isfinite, found)):
            return math.inf
        ends = found[-len(one.logprobs) :]
        total += sum(abs(mine - theirs) for mine, theirs in zip(ends, one.logprobs, strict=True))
        count += len(ends)
    return total / count
