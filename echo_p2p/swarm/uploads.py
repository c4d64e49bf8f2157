"""Which of the requests that wait here are served now. Pure; used by the hub and by every node.

A slow uplink that serves everybody at once serves everybody late, and what arrives late is passed
on late. So few are served at a time and the others wait their turn:

1. Order: lower `rank` first; within a rank askers share fairly, chunk by chunk (start-time fair
   queueing, Goyal et al., SIGCOMM 1996); an asker's own requests in the order they came.
2. Width: `LEAST` places, for one that is sent and one that follows it without a pause. Where round
   trips are long a chunk does not fill its place: a connection in use carries a window each trip,
   one that was idle needs about `WARM_UP` of them to open its window, and during a round trip the
   uplink could send `rtt * rate` bytes. So a chunk takes `size / (size + trips * rtt * rate)` of a
   place, where `rate` is what this uplink was seen to carry.
3. If that is less than the uplink could do (slow receivers), serving more at a time raises the
   rate. So now and then there are more places for a while, and they stay if the rate followed.
4. An asker is served one chunk at a time: two on one connection would only delay each other.
5. What takes `LATE` times longer than usual (a receiver that is slow or was stopped) does not hold
   a place any more. When as many are under way as may be, the oldest of these are cut off, so that
   receivers that do not read keep out nobody.

Invariants: at most `most` are under way and `MOST_BYTES` (one may go over), and one of each asker;
as long as there is a place and somebody waits who is not served, `start` returns a ticket.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass

LEAST = 2
MOST = 32
MOST_BYTES = 64 << 20  # in memory for it
WARM_UP = 6.0
LATE = 3.0
_EPOCH_S, _EPOCH_CHUNKS = 0.25, 6  # over which a rate is measured, at least
_MOST_EXTRA = 16
_PAUSE = 3  # epochs between two trials
_FIRST_RATE = 10e6  # bytes/s, before anything was measured
_FIRST_TOOK_S = 1.0
_COLD_S = 0.3  # TCP forgets its window in about this time


@dataclass
class _Turn:
    asker: str
    rank: int
    rtt_s: float
    size: int
    started: float | None = None
    late: bool = False
    trips: float = 1.0


class Uploads:
    """The queue of one program's uplink."""

    def __init__(self, *, most: int = MOST) -> None:
        self._most = most
        self._turns: dict[int, _Turn] = {}
        self._heap: list[tuple[int, float, int]] = []
        self._waiting: dict[int, int] = {}  # by rank
        self._tags: dict[str, float] = {}
        self._virtual = 0.0
        self._next = 0
        self._active: dict[int, _Turn] = {}
        self._took_s = _FIRST_TOOK_S
        self._measured = False
        self._used_at: dict[str, float] = {}
        self._epoch: tuple[float, float] | None = None  # when it began, bytes sent since
        self._pressed = True  # something has been waiting since the epoch began
        self._rate = _FIRST_RATE
        self._trial = _Trial()

    def ask(self, asker: str, *, rank: int, size: int, rtt_s: float) -> int:
        """A request has come; its ticket."""
        self._next += 1
        ticket = self._next
        tag = max(self._virtual, self._tags.get(asker, 0.0)) + size
        self._tags[asker] = tag
        self._turns[ticket] = _Turn(asker, rank, rtt_s, size)
        self._waiting[rank] = self._waiting.get(rank, 0) + 1
        heapq.heappush(self._heap, (rank, tag, ticket))
        return ticket

    def waiting(self, rank: int) -> int:
        """How many wait at this rank or a lower one."""
        return sum(n for r, n in self._waiting.items() if r <= rank)

    def backlog_s(self, now: float) -> float:
        """How long a chunk that is here from now on would wait to be passed on."""
        waiting = sum(self._waiting.values())
        if not waiting:
            return 0.0
        took = self._took_s if self._measured else 0.0
        ages = (now - turn.started for turn in self._active.values() if turn.started is not None)
        return waiting * max(took, *ages, 0.0) / max(1, len(self._active))

    def start(self, now: float) -> list[int]:
        """Tickets to serve from now on."""
        started: list[int] = []
        aside: list[tuple[int, float, int]] = []
        self._mark_late(now)
        served = {turn.asker for turn in self._active.values()}
        while self._heap and self._places() > 0.5:
            entry = heapq.heappop(self._heap)
            turn = self._turns.get(entry[2])
            if turn is None:
                continue  # it was dropped
            if turn.asker in served:
                aside.append(entry)
                continue
            self._virtual = max(self._virtual, entry[1] - turn.size)
            self._waiting[turn.rank] -= 1
            turn.started = now
            if self._epoch is None:
                self._epoch = now, 0.0
            self._active[entry[2]] = turn
            served.add(turn.asker)
            idle_s = now - self._used_at.get(turn.asker, float("-inf"))
            turn.trips = 1.0 if idle_s < max(_COLD_S, 2 * turn.rtt_s) else WARM_UP
            started.append(entry[2])
        self._pressed &= bool(self._heap)
        for entry in aside:
            heapq.heappush(self._heap, entry)
        return started

    def cut(self, now: float) -> list[int]:
        """Tickets to break off, because somebody waits and they hold all there is."""
        if not self._heap or not self._full():
            return []
        self._mark_late(now)
        return [ticket for ticket, turn in self._active.items() if turn.late][:1]

    def wake_at(self, now: float) -> float | None:
        """When to call `start` again though nothing happens. None: only when something does."""
        if not self._heap:
            return None
        times = [
            turn.started + LATE * self._took_s
            for turn in self._active.values()
            if not turn.late and turn.started is not None
        ]
        return min((time for time in times if time > now), default=None)

    def end(self, ticket: int, now: float, *, sent: bool) -> None:
        """It has been sent, or came to nothing, waiting or served. Unknown tickets are ignored."""
        turn = self._turns.pop(ticket, None)
        if turn is None:
            return
        if turn.started is None:
            self._waiting[turn.rank] -= 1
        else:
            del self._active[ticket]
            if sent:
                self._used_at[turn.asker] = now
                self._measure(turn, now)
        if not self._turns:
            self._heap.clear()
            self._tags.clear()
            self._used_at = {k: t for k, t in self._used_at.items() if now - t < 2.0}
            self._virtual = 0.0
        if not self._active:
            self._epoch = None

    # --- inside ---------------------------------------------------------------------------------

    def _places(self) -> float:
        """Those that are free."""
        if self._full():
            return 0.0
        taken = sum(self._share(turn) for turn in self._active.values() if not turn.late)
        return LEAST + self._trial.extra - taken

    def _full(self) -> bool:
        held = sum(turn.size for turn in self._active.values())
        return len(self._active) >= self._most or held >= MOST_BYTES

    def _share(self, turn: _Turn) -> float:
        return turn.size / (turn.size + turn.trips * turn.rtt_s * self._rate)

    def _mark_late(self, now: float) -> None:
        for turn in self._active.values():
            assert turn.started is not None
            turn.late = turn.late or now - turn.started >= LATE * self._took_s

    def _measure(self, turn: _Turn, now: float) -> None:
        assert turn.started is not None
        took = now - turn.started
        if not turn.late:
            self._took_s = 0.8 * self._took_s + 0.2 * took if self._measured else took
            self._measured = True
        if self._epoch is None:
            return
        began, size = self._epoch[0], self._epoch[1] + turn.size
        self._epoch = began, size
        if now - began >= max(_EPOCH_S, self._took_s) and size >= _EPOCH_CHUNKS * turn.size:
            rate = size / (now - began)
            self._rate = max(rate, self._rate + 0.2 * (rate - self._rate))
            self._epoch = now, 0.0
            if self._pressed:  # else the rate was not ours to set
                self._trial.note(rate, len(self._active) + 1)
            self._pressed = True


class _Trial:
    """Whether serving more at a time makes the uplink carry more."""

    def __init__(self) -> None:
        self.extra = 0
        self._kept = 0
        self._before: float | None = None
        self._rest = 0

    def note(self, rate: float, width: int) -> None:
        """What one epoch carried, with this width."""
        if self._before is not None:
            if rate > 1.15 * self._before:
                self._kept = self.extra
            else:  # perhaps less would do: if not, the next trial brings it back
                self._kept //= 2
                self.extra, self._rest = self._kept, _PAUSE
            self._before = None
        elif self._rest:
            self._rest -= 1
        if not self._rest and self._before is None:
            self._before = rate
            self.extra = min(_MOST_EXTRA, self._kept + math.ceil(width / 2))
