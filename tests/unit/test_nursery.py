"""A lone error leaves a nursery as itself; cancelling the nursery from inside ends the block."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from echo_p2p.nursery import open_nursery


def test_a_cancelled_block_ends_quietly() -> None:
    async def main() -> str:
        async with open_nursery() as nursery:
            nursery.cancel_scope.cancel()
            await trio.sleep_forever()
        return "after"

    assert trio.run(main) == "after"


def test_a_block_that_ends_ends_quietly() -> None:
    async def main() -> str:
        async with open_nursery() as nursery:
            nursery.start_soon(trio.lowlevel.checkpoint)
        return "after"

    assert trio.run(main) == "after"


def test_a_lone_error_comes_out_bare() -> None:
    async def fail() -> None:
        raise ValueError("one")

    async def main() -> None:
        async with open_nursery() as nursery:
            nursery.start_soon(fail)
            await trio.sleep_forever()

    with pytest.raises(ValueError, match="one"):
        trio.run(main)


def test_two_errors_stay_a_group() -> None:
    async def fail(word: str) -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise ValueError(word)

    async def main() -> None:
        async with open_nursery() as nursery:
            nursery.start_soon(fail, "one")
            nursery.start_soon(fail, "two")
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()

    with pytest.raises(BaseExceptionGroup) as caught:
        trio.run(main)
    assert len(caught.value.exceptions) == 2
