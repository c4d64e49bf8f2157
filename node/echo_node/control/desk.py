"""Carrying out what commands ask of a running node."""

from __future__ import annotations

from collections.abc import Callable

from echo_node.chronicle import Chronicle
from echo_node.control.messages import (
    GetLimits,
    GetLogs,
    GetStatus,
    Leave,
    LimitsInForce,
    Logs,
    Pause,
    Reply,
    Request,
    Resume,
    SetLimits,
    Status,
)
from echo_node.governor import Governor
from echo_node.snapshot import Snapshot


class Desk:
    """`answer` is for the control server.

    Args:
        snapshot: how the node stands now.
        leave: begin to end in order.
    """

    def __init__(
        self,
        governor: Governor,
        chronicle: Chronicle,
        *,
        snapshot: Callable[[], Snapshot],
        leave: Callable[[], None],
    ) -> None:
        self._governor = governor
        self._chronicle = chronicle
        self._snapshot = snapshot
        self._leave = leave

    async def answer(self, request: Request) -> Reply:
        """Do it, and say how things stand then."""
        match request:
            case GetLogs():
                lines = self._chronicle.lines(after=request.after, most=request.most)
                return Logs(lines=lines)
            case SetLimits():
                await self._governor.change(request.changes, keep=request.save)
                return self._limits()
            case GetLimits():
                return self._limits()
            case Pause():
                self._governor.pause(request.seconds)
            case Resume():
                self._governor.resume()
            case Leave():
                self._leave()
            case GetStatus():
                pass
        return Status(snapshot=self._snapshot())

    def _limits(self) -> LimitsInForce:
        governor = self._governor
        return LimitsInForce(file=str(governor.config), entries=governor.book.entries())
