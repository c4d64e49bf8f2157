"""A node of a speed to order: `python -m echo_node.throttle SECONDS ANSWERS ...`, for demos.

Everything but its speed is an honest node's program. It works on ANSWERS at a time, and each group
of them takes SECONDS, however fast the machine is: the rest is slept. So several nodes on one
machine do not take time from each other, and their rates are known: ANSWERS / SECONDS.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

import trio

from echo_node.engines.base import Completion, Job
from echo_node.engines.remote import RemoteEngine
from echo_node.stand_in import add_arguments, join_with, opened


class Throttled(RemoteEngine):
    """An engine whose groups take `seconds` each at least."""

    def __init__(self, seconds: float, **parts: Any) -> None:
        super().__init__(**parts)
        self._seconds = seconds

    async def generate(
        self,
        jobs: Sequence[Job],
        *,
        version: int | None = None,
        finished: Callable[[], None] | None = None,
    ) -> list[Completion]:
        begun = trio.current_time()
        answers = await super().generate(jobs, version=version)
        await trio.sleep_until(begun + self._seconds)
        for _ in jobs if finished is not None else ():
            finished()  # type: ignore[misc]
        return answers


def open_throttled(seconds: float, **parts: Any) -> AbstractAsyncContextManager[RemoteEngine]:
    """A throttled engine in the place of `engines.remote.open_engine`."""
    return opened(Throttled(seconds, **parts))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m echo_node.throttle", description=__doc__)
    parser.add_argument("seconds", type=float, help="what a group takes at least")
    parser.add_argument("answers", type=int, help="answers at a time")
    add_arguments(parser)
    asked = parser.parse_args()
    engine = partial(open_throttled, asked.seconds)
    sys.exit(join_with(engine, asked, "throttle", max_sequences=asked.answers))


if __name__ == "__main__":
    main()
