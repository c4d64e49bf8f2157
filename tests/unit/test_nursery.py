from __future__ import annotations

import pytest
import trio

from echo_p2p.errors import NetError, ProcessError
from echo_p2p.nursery import open_nursery


async def fail(error: BaseException) -> None:
    raise error


def test_a_lone_error_comes_out_as_itself_with_its_cause() -> None:
    cause = KeyError("why")

    async def main() -> None:
        async with open_nursery() as outer, open_nursery() as inner:
            outer.start_soon(trio.sleep_forever)
            try:
                raise cause
            except KeyError as error:
                inner.start_soon(trio.sleep_forever)
                raise ProcessError("it died") from error

    with pytest.raises(ProcessError, match="it died") as caught:
        trio.run(main)
    assert caught.value.__cause__ is cause
    assert caught.value.__suppress_context__


def test_a_task_s_error_too() -> None:
    async def main() -> None:
        async with open_nursery() as nursery:
            nursery.start_soon(fail, NetError("gone"))
            await trio.sleep_forever()

    with pytest.raises(NetError, match="gone"):
        trio.run(main)


def test_several_errors_stay_a_group() -> None:
    async def main() -> None:
        async with open_nursery() as nursery:
            nursery.start_soon(fail, NetError("one"))
            nursery.start_soon(fail, ProcessError("two"))

    with pytest.raises(ExceptionGroup) as caught:
        trio.run(main)
    assert {type(error) for error in caught.value.exceptions} == {NetError, ProcessError}


def test_cancellation_goes_where_it_belongs() -> None:
    async def main() -> list[str]:
        seen = []
        with trio.CancelScope() as scope:
            async with open_nursery() as nursery:
                nursery.start_soon(trio.sleep_forever)
                scope.cancel()
                await trio.sleep_forever()
            seen.append("not reached")
        seen.append(f"caught {scope.cancelled_caught}")
        async with open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            nursery.cancel_scope.cancel()
        seen.append("own scope")
        async with open_nursery() as nursery:
            nursery.cancel_scope.cancel()
            await trio.sleep_forever()
        seen.append("in mid-block")
        return seen

    assert trio.run(main) == ["caught True", "own scope", "in mid-block"]


def test_without_errors_the_tasks_are_waited_for() -> None:
    done: list[int] = []

    async def work(number: int) -> None:
        await trio.lowlevel.checkpoint()
        done.append(number)

    async def main() -> None:
        async with open_nursery() as nursery:
            for number in range(3):
                nursery.start_soon(work, number)

    trio.run(main)
    assert sorted(done) == [0, 1, 2]
