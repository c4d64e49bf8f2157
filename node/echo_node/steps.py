"""Waits with a name and an end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import trio

from echo_node.events import Event, Step
from echo_p2p.errors import DeadlineError


@contextmanager
def step(report: Callable[[Event], None], name: str, deadline_s: float) -> Iterator[None]:
    """Name a wait and bound it: DeadlineError when it takes too long."""
    report(Step(step=name))
    with trio.move_on_after(deadline_s) as scope:
        yield
    if scope.cancelled_caught:
        raise DeadlineError(f"{name} took longer than {deadline_s:g} s.")
