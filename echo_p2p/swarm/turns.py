"""The queue of a program's uplink, as tasks see it: `uploads` decides, here they wait.

Promise: whoever entered the queue leaves it, served, refused or cancelled; `ended` may be called
twice. A turn whose `cut` is cancelled shall not be served any further.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import trio

from echo_p2p.swarm.uploads import Uploads


@dataclass
class Turn:
    """One request's place in the queue."""

    ticket: int
    turns: Turns
    begun: trio.Event = field(default_factory=trio.Event)
    cut: trio.CancelScope = field(default_factory=trio.CancelScope)

    async def begins(self) -> None:
        """Wait for it."""
        while not self.begun.is_set():
            wake_at = self.turns.uploads.wake_at(trio.current_time())
            with trio.move_on_at(float("inf") if wake_at is None else wake_at):
                await self.begun.wait()
            self.turns.pump()

    def ended(self, sent: bool) -> None:
        """The chunk has left, or it came to nothing."""
        self.turns.end(self, sent)


class Turns:
    """All turns at one program's uplink."""

    def __init__(self) -> None:
        self.uploads = Uploads()
        self._turns: dict[int, Turn] = {}

    def enter(self, asker: str, *, rank: int, size: int, rtt_s: float) -> Turn:
        """Queue up; lower ranks go first."""
        ticket = self.uploads.ask(asker, rank=rank, size=size, rtt_s=rtt_s)
        turn = self._turns[ticket] = Turn(ticket, self)
        self.pump()
        return turn

    def end(self, turn: Turn, sent: bool) -> None:
        if self._turns.pop(turn.ticket, None) is not None:
            self.uploads.end(turn.ticket, trio.current_time(), sent=sent)
            self.pump()

    def pump(self) -> None:
        """Begin the turns whose time has come."""
        now = trio.current_time()
        for ticket in self.uploads.start(now):
            self._turns[ticket].begun.set()
        for ticket in self.uploads.cut(now):
            self._turns[ticket].cut.cancel()
