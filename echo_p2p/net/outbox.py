"""What waits to be sent on one connection, and in which order it goes. Pure.

Two lanes. What is urgent (everything but chunks) goes first, in the order it came. Bulk waits for
each stream by itself, and the streams take turns, a frame each. Within a stream nothing overtakes:
while bulk of a stream waits, whatever else that stream sends waits behind it.

Invariant: `urgent` and what `waiting` tells of each stream are the bytes held, headers left out of
the latter.
"""

from __future__ import annotations

from collections import deque

from echo_p2p.net.yamux import DATA, FIN, WINDOW, encode

Part = bytes | memoryview


class _Lane:
    def __init__(self) -> None:
        self.views: deque[memoryview] = deque()
        self.size = 0
        self.ends = False


class Outbox:
    """Made for one connection; its `take` is called by the one task that writes."""

    def __init__(self) -> None:
        self.urgent = 0
        self._urgent: deque[Part] = deque()
        self._lanes: dict[int, _Lane] = {}
        self._turns: deque[int] = deque()  # streams with bulk, the next first

    def put(self, *parts: Part) -> None:
        """Add to what is urgent."""
        self._urgent.extend(parts)
        self.urgent += sum(map(len, parts))

    def put_bulk(self, stream_id: int, data: memoryview) -> None:
        """Add bulk of a stream."""
        lane = self._lanes.get(stream_id)
        if lane is None:
            lane = self._lanes[stream_id] = _Lane()
            self._turns.append(stream_id)
        lane.views.append(data)
        lane.size += len(data)

    def waiting(self, stream_id: int) -> int:
        """Bytes of a stream's bulk that are here still."""
        lane = self._lanes.get(stream_id)
        return 0 if lane is None else lane.size

    def end(self, stream_id: int) -> None:
        """Say, after all that the stream still has here, that it sends nothing more."""
        lane = self._lanes.get(stream_id)
        if lane is None:
            self.put(encode(WINDOW, FIN, stream_id, 0))
        else:
            lane.ends = True

    def drop(self, stream_id: int) -> None:
        """The stream was reset: what it has here is not sent."""
        if self._lanes.pop(stream_id, None) is not None:
            self._turns.remove(stream_id)

    def drop_bulk(self) -> None:
        """Send no bulk any more."""
        self._lanes.clear()
        self._turns.clear()

    # --- the order ------------------------------------------------------------------------------

    def take_urgent(self, most: int) -> list[Part]:
        """What is urgent, about `most` bytes of it."""
        parts: list[Part] = []
        size = 0
        while self._urgent and size < most:
            parts.append(self._urgent.popleft())
            size += len(parts[-1])
        self.urgent -= size
        return parts

    def next_size(self, most: int) -> int:
        """Bytes of the body of the next bulk frame, at most `most`; 0 if there is none."""
        if not self._turns:
            return 0
        return min(most, len(self._lanes[self._turns[0]].views[0]))

    def take_frame(self, most: int) -> list[Part]:
        """The next bulk frame; its stream has its next turn after all others that wait."""
        stream_id = self._turns.popleft()
        lane = self._lanes[stream_id]
        view = lane.views.popleft()
        body = view[:most]
        lane.size -= len(body)
        if len(body) < len(view):
            lane.views.appendleft(view[most:])
        parts: list[Part] = [encode(DATA, 0, stream_id, len(body)), body]
        if lane.views:
            self._turns.append(stream_id)
        else:
            del self._lanes[stream_id]
            if lane.ends:
                parts.append(encode(WINDOW, FIN, stream_id, 0))
        return parts
