"""Nurseries whose failures keep their own type.

trio puts everything that ends a nursery into an exception group, even a single error. A context
manager with a nursery inside (a child process, a directory) would so change what its caller can
catch. Here one error alone is raised itself; two or more stay a group, and lose nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio


@asynccontextmanager
async def open_nursery() -> AsyncIterator[trio.Nursery]:
    """`trio.open_nursery`, except that a lone error comes out bare."""
    lone: BaseException
    try:
        async with trio.open_nursery() as nursery:
            yield nursery
    except BaseExceptionGroup as group:
        lone = group
        while isinstance(lone, BaseExceptionGroup) and len(lone.exceptions) == 1:
            lone = lone.exceptions[0]
        if isinstance(lone, BaseExceptionGroup):
            raise
    else:
        return  # also when the block was cancelled, and the nursery absorbed that
    raise lone  # outside the handler, which would have made the group its context
