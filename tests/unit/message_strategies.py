"""Hypothesis strategies for every wire message, derived from the types themselves.

A message that is added to echo_p2p.wire is generated, and so tested, without a line here.
"""

from __future__ import annotations

from typing import Any

import msgspec
import msgspec.inspect as mi
from hypothesis import strategies as st

from echo_p2p.wire import Message, Signed

_MOST = 64  # longest generated text, bytes or tuple, where its type allows more


def _leaves(kind: type[Message]) -> list[type[Message]]:
    below = kind.__subclasses__()
    return [leaf for each in below for leaf in _leaves(each)] if below else [kind]


MESSAGES = sorted(_leaves(Message), key=lambda kind: kind.__name__)
SIGNED = [kind for kind in MESSAGES if issubclass(kind, Signed)]


def _sizes(info: Any) -> dict[str, int]:
    least = info.min_length or 0
    most = min(info.max_length if info.max_length is not None else _MOST, max(least, _MOST))
    return {"min_size": least, "max_size": most}


def strategy(info: mi.Type) -> st.SearchStrategy[Any]:
    """Values of a field's type, its limits included."""
    match info:
        case mi.IntType():
            least = -(2**63) if info.gt is None else info.gt + 1
            most = 2**63 - 1 if info.lt is None else info.lt - 1
            return st.integers(
                least if info.ge is None else info.ge, most if info.le is None else info.le
            )
        case mi.FloatType():
            least = info.gt if info.ge is None else info.ge
            most = info.lt if info.le is None else info.le
            return st.floats(least, most, exclude_min=info.ge is None, allow_nan=False)
        case mi.StrType(pattern=None):
            return st.text(**_sizes(info))
        case mi.StrType():
            return st.from_regex(info.pattern)
        case mi.BytesType() | mi.MemoryViewType():
            return st.binary(**_sizes(info))
        case mi.BoolType():
            return st.booleans()
        case mi.NoneType():
            return st.none()
        case mi.LiteralType():
            return st.sampled_from(info.values)
        case mi.UnionType():
            return st.one_of([strategy(each) for each in info.types])
        case mi.VarTupleType():
            few = {**_sizes(info), "max_size": min(4, _sizes(info)["max_size"])}
            return st.lists(strategy(info.item_type), **few).map(tuple)
        case mi.TupleType():
            return st.tuples(*map(strategy, info.item_types))
        case mi.StructType():
            return st.builds(info.cls, **{f.name: strategy(f.type) for f in info.fields})
    raise NotImplementedError(f"no strategy for {info}")


def messages(kind: type[Message]) -> st.SearchStrategy[Any]:
    """Valid messages of one type."""
    return strategy(mi.type_info(kind))


def any_message() -> st.SearchStrategy[Any]:
    """Valid messages of all types."""
    return st.sampled_from(MESSAGES).flatmap(messages)


def as_map(message: msgspec.Struct) -> dict[str, Any]:
    """A message as the map that is encoded."""
    built: dict[str, Any] = msgspec.to_builtins(message, builtin_types=(bytes,))
    return built


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """`data` with bits flipped, cut short, bytes inserted or taken out."""
    out = bytearray(data)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, max(0, len(out) - 1)))
        match draw(st.sampled_from(["flip", "cut", "insert", "remove", "set"])):
            case "flip" if out:
                out[at] ^= 1 << draw(st.integers(0, 7))
            case "cut":
                del out[at:]
            case "insert":
                out[at:at] = draw(st.binary(min_size=1, max_size=8))
            case "remove":
                del out[at : at + draw(st.integers(1, 8))]
            case "set" if out:
                out[at] = draw(st.sampled_from([0x00, 0x7F, 0x80, 0xC0, 0xC1, 0xC6, 0xDF, 0xFF]))
    return bytes(out)
