"""Blocking work beside the caller's event loop, whichever that is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

import sniffio
import trio

R = TypeVar("R")


async def in_thread(work: Callable[[], R]) -> R:
    """What `work` returns, run in a thread."""
    if sniffio.current_async_library() == "trio":
        return await trio.to_thread.run_sync(work)
    return await asyncio.to_thread(work)
