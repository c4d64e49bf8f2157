"""A feed from the hub's thread: in order, whole, in every kind of program."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest
import trio

from echo_hub.sdk.feed import Feed
from echo_p2p.errors import RunFailedError

MANY = 500


def filled(error: Exception | None = None) -> tuple[Feed[int], threading.Thread]:
    feed: Feed[int] = Feed()

    def work() -> None:
        for number in range(MANY):
            feed.put(number)
        feed.end(error)
        feed.put(-1)

    thread = threading.Thread(target=work)
    thread.start()
    return feed, thread


async def gathered(feed: Feed[int]) -> list[int]:
    return [number async for number in feed]


def of_trio(feed: Feed[int]) -> list[int]:
    return trio.run(gathered, feed)


def of_asyncio(feed: Feed[int]) -> list[int]:
    return asyncio.run(gathered(feed))


@pytest.mark.parametrize("read", [list, of_trio, of_asyncio])
def test_everything_comes_in_order(read: Callable[[Feed[int]], list[int]]) -> None:
    feed, thread = filled()
    assert read(feed) == list(range(MANY))
    thread.join()


@pytest.mark.parametrize("read", [list, of_trio, of_asyncio])
def test_an_error_comes_after_the_last_item(read: Callable[[Feed[int]], list[int]]) -> None:
    feed, thread = filled(RunFailedError("it paused"))
    thread.join()
    seen = next(feed)
    with pytest.raises(RunFailedError, match="it paused"):
        read(feed)
    assert seen == 0
    assert read(feed) == []


def test_waiting_has_an_end() -> None:
    feed: Feed[int] = Feed()
    assert not feed.wait(0.01)
    feed.put(1)
    assert feed.wait(100)
