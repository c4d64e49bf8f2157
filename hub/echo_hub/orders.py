"""What operators want of the run as a whole, done between two updates, in the order of asking.

Promises: an order that was taken is carried out or its asker hears why not, also if the asker does
not wait; none is taken once the run is over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field

import trio

from echo_hub.control.actions import Pin, RunAction, Unpin
from echo_p2p.errors import ConfigError, EchoError, LearnerError


@dataclass
class _Order:
    action: RunAction
    done: trio.Event = field(default_factory=trio.Event)
    sentence: str = ""
    error: EchoError | None = None


class Orders:
    """Orders that wait. `wake` is called when there is a new one."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._waiting: deque[_Order] = deque()
        self._over = False

    def waiting(self) -> bool:
        """Is there anything to be done?"""
        return bool(self._waiting)

    async def ask(self, action: RunAction) -> str:
        """Have it done, and say what was done; EchoError if it cannot be."""
        if self._over:
            raise _over()
        order = _Order(action)
        self._waiting.append(order)
        self._wake()
        await order.done.wait()
        if order.error is not None:
            raise order.error
        return order.sentence

    async def carry_out(self, do: Callable[[RunAction], Awaitable[str]]) -> None:
        """Do all that waits."""
        while self._waiting:
            order = self._waiting.popleft()
            try:
                order.sentence = await do(order.action)
            except EchoError as error:
                order.error = error
            order.done.set()

    def open(self) -> None:
        """The run goes on: orders are taken."""
        self._over = False

    def close(self) -> None:
        """The run is over."""
        self._over = True
        for order in self._waiting:
            order.error = _over()
            order.done.set()
        self._waiting.clear()


def missing_version(version: int, there: Collection[int]) -> ConfigError:
    """A version cannot be gone back to, or kept."""
    known = ", ".join(map(str, sorted(there))) or "none"
    return ConfigError(
        f"version {version} has no checkpoint that could be used.",
        fix=f"There are: {known}. A run keeps the last ones only, and those that are pinned.",
    )


def sentence_of_pin(action: Pin | Unpin) -> str:
    """What was done to a version."""
    return f"version {action.version} is {'kept for good' if isinstance(action, Pin) else 'free'}"


def _over() -> LearnerError:
    return LearnerError(
        "the run is complete, or its hub is stopping: no update comes any more.",
        fix="Raise run.updates in run.toml and serve it again.",
    )
