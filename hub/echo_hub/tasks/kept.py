"""The prompts of a task that a run trains on, if not all: what `echo-hub filter` kept."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from echo_p2p.errors import ConfigError

_MOST_BYTES = 256 << 20


class Kept(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was measured of one task. `prompts` are the indices of those kept, of `rates`.

    `rates` are (index, pass rate) of `rollouts` sampled answers each by the base with that digest;
    a prompt was kept if its rate lay from `low` to `high`. `name`, `options` and `seed` are what
    its prompts depend on.
    """

    label: str
    name: str
    options: dict[str, Any]
    seed: int
    base: str
    rollouts: int
    low: float
    high: float
    rates: list[tuple[int, float]]
    prompts: list[int]


def read_kept(path: str, *, name: str, options: Mapping[str, Any], seed: int) -> list[int]:
    """Indices of the prompts of a task that are kept; ConfigError if the file is not for it."""
    try:
        if Path(path).stat().st_size > _MOST_BYTES:
            raise ConfigError(f"{path} is over {_MOST_BYTES} bytes; echo-hub filter made it not.")
        found = msgspec.json.decode(Path(path).read_bytes(), type=list[Kept])
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}.") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is no file of echo-hub filter: {error}.") from error
    for one in found:
        if (one.name, one.options, one.seed) == (name, dict(options), seed):
            if not one.prompts or min(one.prompts) < 0:
                raise ConfigError(f"{path} keeps no prompt of {name}.")
            return one.prompts
    made_for = ", ".join(f"{one.name} (seed {one.seed})" for one in found) or "nothing"
    raise ConfigError(
        f"{path} was made for {made_for}, and not for {name} with these options and seed {seed}.",
        fix="Run echo-hub filter again, or take task.kept out.",
    )
