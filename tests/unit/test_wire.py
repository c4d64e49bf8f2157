"""Every message of the wire: what is valid comes back, what is not is a WireError."""

from __future__ import annotations

import math
from functools import reduce
from operator import or_
from typing import Any

import msgspec
import msgspec.inspect as mi
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from message_strategies import MESSAGES, any_message, as_map, damaged, messages, strategy

from echo_p2p import wire
from echo_p2p.errors import WireError
from echo_p2p.wire import (
    MAX_TOKENS,
    Hello,
    LatestRequest,
    Lease,
    Message,
    Submit,
    decode,
    encode,
    pack_logprobs,
    pack_tokens,
    unpack_logprobs,
    unpack_tokens,
)

UNIONS: list[Any] = [
    wire.HubRequest,
    wire.HubReply,
    wire.SwarmRequest,
    wire.SwarmReply,
    wire.WatchEvent,
    reduce(or_, MESSAGES),
]
KINDS: list[Any] = [*MESSAGES, *UNIONS]
WRONG: dict[type, list[Any]] = {
    mi.IntType: ["1", b"1", 1.5, None, [], {}, True, 2**64 - 1, -(2**63)],
    mi.FloatType: ["1", b"1", None, [], {}, True, math.nan, math.inf, -math.inf],
    mi.StrType: [1, b"a", None, [], {}, True],
    mi.BytesType: [1, "a", [], {}, True, 1.5],
    mi.MemoryViewType: [1, "a", [], {}, True, 1.5],
    mi.BoolType: [1, 0, "true", None, [], {}],
    mi.LiteralType: [1, "neither", b"stop", None, []],
    mi.VarTupleType: [1, "a", b"a", None, {}, True],
    mi.StructType: [1, "a", b"a", None, [], True],
}


def test_every_kind_of_message_is_here() -> None:
    names = {kind.__name__ for kind in MESSAGES}
    assert {"Lease", "Submission", "Manifest", "Hello", "ChunkReply", "Refusal"} <= names
    assert len(MESSAGES) == len(names)


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
@given(data=st.data())
@settings(max_examples=25)
def test_a_message_comes_back(kind: type[Message], data: st.DataObject) -> None:
    message = data.draw(messages(kind))
    sent = encode(message)
    assert decode(sent, kind) == message
    for union in UNIONS:
        if kind in union.__args__:
            assert decode(sent, union) == message
        else:
            with pytest.raises(WireError, match="Invalid value"):
                decode(sent, union)


@given(st.binary(max_size=300), st.sampled_from(KINDS))
@settings(max_examples=500)
def test_random_bytes_are_refused(data: bytes, kind: Any) -> None:
    with pytest.raises(WireError):
        decode(data, kind)


@given(st.data())
@settings(max_examples=500)
def test_damaged_bytes_are_refused_or_are_a_valid_message(data: st.DataObject) -> None:
    message = data.draw(any_message())
    for kind in (type(message), UNIONS[-1]):
        try:
            got = decode(data.draw(damaged(encode(message))), kind)
        except WireError:
            continue
        assert decode(encode(got), kind) == got


@given(any_message(), st.data())
def test_what_is_cut_short_or_goes_on_is_refused(message: Message, data: st.DataObject) -> None:
    sent = encode(message)
    with pytest.raises(WireError):
        decode(sent[: data.draw(st.integers(0, len(sent) - 1))], type(message))
    with pytest.raises(WireError):
        decode(sent + data.draw(st.binary(min_size=1, max_size=5)), type(message))


@given(any_message(), st.text(max_size=12))
def test_an_unknown_field_is_refused(message: Message, name: str) -> None:
    fields = as_map(message)
    if name in fields:
        name += "_"
    for value in (None, 1, b"x"):
        with pytest.raises(WireError, match="unknown field"):
            decode(msgspec.msgpack.encode({**fields, name: value}), type(message))


@given(any_message())
def test_a_missing_field_is_refused(message: Message) -> None:
    fields = as_map(message)
    for name in set(fields) - {"type"}:
        fewer = {key: value for key, value in fields.items() if key != name}
        with pytest.raises(WireError, match=f"missing required field `{name}`"):
            decode(msgspec.msgpack.encode(fewer), type(message))


@given(any_message(), st.sampled_from(["", "Nothing", "message", "LeaSe", 1, None, b"Lease"]))
def test_an_unknown_tag_is_refused(message: Message, tag: Any) -> None:
    sent = msgspec.msgpack.encode({**as_map(message), "type": tag})
    for kind in (type(message), UNIONS[-1]):
        with pytest.raises(WireError):
            decode(sent, kind)


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
@given(data=st.data())
@settings(max_examples=5)
def test_a_field_of_the_wrong_type_is_refused(kind: type[Message], data: st.DataObject) -> None:
    fields = as_map(data.draw(messages(kind)))
    for field in mi.type_info(kind).fields:  # type: ignore[attr-defined]
        inside = getattr(field.type, "types", (field.type,))
        optional = any(isinstance(each, mi.NoneType) for each in inside)
        for value in WRONG[type(inside[0])]:
            if value is None and optional:
                continue
            with pytest.raises(WireError):
                decode(msgspec.msgpack.encode({**fields, field.name: value}), kind)


def limits(info: Any, data: st.DataObject) -> list[tuple[Any, bool]]:
    """Values at the limits of a field's type and next beyond them, and whether they are allowed."""
    match info:
        case mi.IntType() | mi.FloatType():
            bounds = [
                (info.ge, True, -1),
                (info.gt, False, -1),
                (info.le, True, 1),
                (info.lt, False, 1),
            ]
            values: list[tuple[Any, bool]] = []
            for bound, inclusive, outward in bounds:
                if bound is not None:
                    values += [(bound, inclusive), (next_to(bound, outward, info), False)]
            return values
        case mi.BytesType() | mi.StrType(pattern=None):
            unit = b"a" if isinstance(info, mi.BytesType) else "é"
            sizes = [(info.max_length, True), (info.max_length + 1, False)]
            if info.min_length:
                sizes += [(info.min_length, True), (info.min_length - 1, False)]
            return [(unit * size, allowed) for size, allowed in sizes]
        case mi.VarTupleType():
            item = msgspec.to_builtins(data.draw(strategy(info.item_type)), builtin_types=(bytes,))
            return [((item,) * info.max_length, True), ((item,) * (info.max_length + 1), False)]
    return []


def next_to(bound: float, outward: int, info: Any) -> float:
    if isinstance(info, mi.IntType):
        return bound + outward
    return math.nextafter(bound, outward * math.inf)


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
@given(data=st.data())
@settings(max_examples=2)
def test_limits_are_kept_to_the_byte(kind: type[Message], data: st.DataObject) -> None:
    fields = as_map(data.draw(messages(kind)))
    for field in mi.type_info(kind).fields:  # type: ignore[attr-defined]
        inside = getattr(field.type, "types", (field.type,))[0]
        for value, allowed in limits(inside, data):
            sent = msgspec.msgpack.encode({**fields, field.name: value})
            if allowed:
                assert as_map(decode(sent, kind))[field.name] == value
            else:
                with pytest.raises(WireError):
                    decode(sent, kind)


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
def test_every_field_has_a_limit(kind: type[Message]) -> None:
    """Nobody can make us keep more than a message's own limits allow."""

    def check(info: Any) -> None:
        match info:
            case mi.BytesType() | mi.VarTupleType() | mi.StrType(pattern=None):
                assert info.max_length is not None, info
        for inner in (
            *getattr(info, "types", ()),
            *(field.type for field in getattr(info, "fields", ())),
            *((info.item_type,) if isinstance(info, mi.VarTupleType) else ()),
        ):
            check(inner)

    check(mi.type_info(kind))


@pytest.mark.parametrize(
    "run_id", ["", "-a", "A", "a_b", "a b", "a\n", "ä", "a" * 64, "a/../b", "a\0"]
)
def test_a_run_id_is_fit_for_a_file_name(run_id: str) -> None:
    sent = msgspec.msgpack.encode({"type": "LatestRequest", "run_id": run_id})
    with pytest.raises(WireError, match="matching regex"):
        decode(sent, LatestRequest)
    good = LatestRequest(run_id="a" * 63)
    assert decode(encode(good), LatestRequest) == good


@pytest.mark.parametrize(
    "bomb",
    [
        b"\x91" * 200_000,
        b"\x81\xa1a" * 200_000,
        b"\x81\xa4type" * 200_000,
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\xc9\xff\xff\xff\xff\x01",
        b"\xc7\x0c\xff" + bytes(12),
        b"\xa1\xff",
        b"\x81\xa4type\xa1\xff",
        b"\x81\xa4type\xae" + b"\xed\xa0\x80" * 4 + b"ab",
    ],
)
def test_bombs_are_refused(bomb: bytes) -> None:
    for kind in KINDS:
        with pytest.raises(WireError):
            decode(bomb, kind)


def test_an_error_names_what_was_expected_and_where() -> None:
    with pytest.raises(WireError, match=r"7 bytes that are no Lease: .*truncated"):
        decode(encode(Submit(envelope=bytes(100)))[:7], Lease)
    sent = msgspec.msgpack.encode({"type": "Submit", "envelope": 5})
    with pytest.raises(WireError, match=r"no message of this protocol: .*\$\.envelope"):
        decode(sent, wire.HubRequest)


def test_messages_do_not_change() -> None:
    hello = Hello(protocol=1, run_id="a", software="s", engine="e", addresses=())
    with pytest.raises(AttributeError):
        hello.run_id = "b"  # type: ignore[misc]


@given(st.lists(st.integers(0, 2**32 - 1), max_size=50))
def test_tokens_come_back(tokens: list[int]) -> None:
    packed = pack_tokens(tokens)
    assert len(packed) == 4 * len(tokens)
    assert unpack_tokens(packed) == tokens
    assert packed[:4] == b"".join(token.to_bytes(4, "little") for token in tokens[:1])


@given(st.lists(st.floats(width=32), max_size=50))
def test_logprobs_come_back_nan_and_infinities_too(logprobs: list[float]) -> None:
    packed = pack_logprobs(logprobs)
    assert len(packed) == 4 * len(logprobs)
    again = unpack_logprobs(packed)
    assert pack_logprobs(again) == packed
    assert all(a == b or (a != a and b != b) for a, b in zip(again, logprobs, strict=True))


@given(st.binary(max_size=50))
def test_packed_numbers_are_whole_or_refused(data: bytes) -> None:
    if len(data) % 4 == 0:
        assert len(unpack_tokens(data)) == len(unpack_logprobs(data)) == len(data) // 4
        return
    for unpack in (unpack_tokens, unpack_logprobs):
        with pytest.raises(WireError, match="multiple of 4"):
            unpack(data)


def test_a_longest_answer_fits_its_fields() -> None:
    rollout = wire.Rollout(
        tokens=pack_tokens(range(MAX_TOKENS)),
        logprobs=pack_logprobs([-1.0] * MAX_TOKENS),
        finish="length",
    )
    assert decode(encode(rollout), wire.Rollout) == rollout
