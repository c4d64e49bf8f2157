"""What a fetch knows of each of those it asks: what they have, how soon they answer. Pure.

Everything is measured here, at the asker; nothing that a source says of its own speed is believed.

- `gap_s`: time between two chunks from a source that has something to send, smoothed. It is the
  inverse of the rate it gives *us*, whatever else it serves.
- `least_s`: the quickest answer so far, about one round trip and one chunk.
- `window`, the requests kept at a source, as TCP Vegas does it (Brakmo and Peterson, 1995): of
  `window` requests, `window * (1 - least_s / took)` stood in the source's queue. Under `slack`
  requests one more is kept, over one and a half times that one fewer. So a source that many ask
  holds one request of each, and a far one that few ask soon holds as many as cover the round trip.
"""

from __future__ import annotations

from dataclasses import dataclass, field

_SMOOTH = 0.3
_FIRST_BACKOFF_S, _LONGEST_BACKOFF_S = 0.25, 30.0
_LINDY = 0.5  # what is late by t is expected to take half of its age more


@dataclass(frozen=True)
class Order:
    """One request to make. `index` None asks the hub to pick among `lacks`."""

    number: int
    source: str
    index: int | None
    lacks: int
    insist: bool
    since: float
    expected_at: float

    def remaining_s(self, now: float) -> float:
        """How much longer it may be expected to take; grows when it is late."""
        return max(self.expected_at - now, _LINDY * (now - self.since))

    def next_look(self, now: float) -> float:
        """When `remaining_s` is worth looking at again; later than now."""
        return self.expected_at if self.expected_at > now else now + 0.5 * (now - self.since) + 0.01


@dataclass
class Source:
    """A peer, or the hub."""

    have: int = 0
    flying: dict[int, Order] = field(default_factory=dict)
    strikes: int = 0  # failures since its last chunk
    closings: int = 0  # since its last chunk
    closed_until: float = float("-inf")
    gap_s: float | None = None
    least_s: float | None = None
    last_at: float = float("-inf")
    window: int = 1
    stalls_at: float = float("inf")  # when it will have kept us waiting too long
    full: bool = False  # the latest order filled the window

    @property
    def room(self) -> int:
        """Requests that it may be sent more."""
        return self.window - len(self.flying)

    def wait_s(self, guess: float) -> float:
        """How long one more request will take; `guess` is the gap of a source not known yet.

        One that kept us waiting and gave nothing since is believed less each time.
        """
        gap_s = guess if self.gap_s is None else self.gap_s
        return (len(self.flying) + 1) * gap_s * 2.0 ** min(self.closings, 10)

    def busy_s(self, now: float) -> float:
        """How long one more request would take as far as is known: no guess."""
        if self.gap_s is not None:
            return (len(self.flying) + 1) * self.gap_s
        return 0.0

    def learn(self, order: Order, now: float, most: int, slack: int) -> None:
        """A chunk came of this order. The window stays within `most`; `slack`: see the module."""
        took = max(now - order.since, 1e-6)
        self.least_s = took if self.least_s is None else min(took, self.least_s)
        gap = now - max(self.last_at, order.since)
        self.gap_s = gap if self.gap_s is None else (1 - _SMOOTH) * self.gap_s + _SMOOTH * gap
        self.last_at = now
        queued = self.window * (1 - self.least_s / took)
        if queued < slack and self.full:
            self.window = min(most, self.window + 1)
        elif queued > 1.5 * slack:
            self.window = max(1, self.window - 1)

    def close_for_a_while(self, now: float) -> None:
        """Do not use it for a time that doubles until it gives a chunk."""
        backoff = min(_LONGEST_BACKOFF_S, _FIRST_BACKOFF_S * 2 ** min(self.closings, 10))
        self.closings += 1
        self.closed_until = max(self.closed_until, now + backoff)

    def watch(self, first_s: float, least_s: float, most_s: float) -> None:
        """Set `stalls_at`: four gaps without a chunk; `first_s` before there was any."""
        oldest = next(iter(self.flying.values()), None)
        if oldest is None:
            self.stalls_at = float("inf")
            return
        patience = first_s if self.gap_s is None else min(most_s, max(least_s, 4 * self.gap_s))
        self.stalls_at = max(self.last_at, oldest.since) + patience

    def usable(self, now: float) -> bool:
        """Whether it may be counted on."""
        return self.closed_until <= now < self.stalls_at
