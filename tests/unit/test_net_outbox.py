"""The order in which a connection sends: urgent first, streams in turn, each in its order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from echo_p2p.net.outbox import Outbox
from echo_p2p.net.yamux import DATA, FIN, WINDOW, Decoder, Frame, Piece, encode

STREAMS = (1, 3, 5)
SIZES = st.integers(1, 5000)
ACTIONS = st.one_of(
    st.tuples(st.just("bulk"), st.sampled_from(STREAMS), SIZES),
    st.tuples(st.just("urgent"), st.sampled_from(STREAMS), st.integers(1, 50)),
    st.tuples(st.just("end"), st.sampled_from(STREAMS), st.just(0)),
    st.tuples(st.just("drop"), st.sampled_from(STREAMS), st.just(0)),
    st.tuples(st.just("frame"), st.just(0), SIZES),
)


@given(st.lists(ACTIONS, max_size=60))
def test_each_stream_arrives_whole_and_in_order_unless_it_is_dropped(actions):
    outbox, wire = Outbox(), b""
    said = dict.fromkeys(STREAMS, b"")
    over: set[int] = set()
    dropped: set[int] = set()
    for number, (action, stream_id, size) in enumerate(actions):
        data = number.to_bytes(2, "big") * size
        if action == "frame":
            wire += b"".join(outbox.take_urgent(1 << 30))
            if outbox.next_size(size):
                wire += b"".join(outbox.take_frame(size))
        elif action == "drop":
            outbox.drop(stream_id)
            dropped.add(stream_id)
        elif stream_id in over:
            continue
        elif action == "end":
            outbox.end(stream_id)
            over.add(stream_id)
        else:
            said[stream_id] += data
            if action == "bulk" or outbox.waiting(stream_id):
                outbox.put_bulk(stream_id, memoryview(data))
            else:
                outbox.put(encode(DATA, 0, stream_id, len(data)), data)
    wire += b"".join(outbox.take_urgent(1 << 30))
    while outbox.next_size(700):
        wire += b"".join(outbox.take_frame(700))
    heard = dict.fromkeys(STREAMS, b"")
    ended: set[int] = set()
    for item in Decoder().feed(wire):
        if isinstance(item, Piece):
            assert item.stream_id not in ended
            heard[item.stream_id] += item.data
        elif isinstance(item, Frame) and item.kind == WINDOW and item.flags & FIN:
            ended.add(item.stream_id)
    for stream_id in STREAMS:
        if stream_id not in dropped:
            assert heard[stream_id] == said[stream_id]
            assert (stream_id in ended) == (stream_id in over)
    assert outbox.urgent == 0
    assert not any(outbox.waiting(stream_id) for stream_id in STREAMS)


def test_urgent_goes_before_bulk_that_came_first_and_streams_take_turns():
    outbox = Outbox()
    for stream_id in (1, 3):
        outbox.put_bulk(stream_id, memoryview(bytes(250)))
    outbox.put(b"now")
    assert outbox.take_urgent(100) == [b"now"]
    order = []
    while outbox.next_size(100):
        header, body = outbox.take_frame(100)
        order.append((int.from_bytes(header[4:8], "big"), len(body)))
    assert order == [(1, 100), (3, 100), (1, 100), (3, 100), (1, 50), (3, 50)]
