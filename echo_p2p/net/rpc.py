"""Typed requests: a message of `wire` goes out, a message of `wire` comes back.

Promises: what comes back is of the type asked for, or a `NetError` is raised; what a handler sees
is of the type it answers, or the asker is refused with "bad_message".
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import UnionType
from typing import Any, TypeVar, overload

import trio

from echo_p2p.errors import NetError, PeerRefusedError, WireError
from echo_p2p.net.host import Peer, Remote
from echo_p2p.net.server import Reply
from echo_p2p.wire import MAX_CONTROL_BYTES, Message, Refusal, decode, encode

M = TypeVar("M", bound=Message)


@dataclass(frozen=True)
class Sending:
    """A reply as in `server.Reply`."""

    message: Message
    sent: Callable[[bool], None]
    cut: trio.CancelScope


@overload
async def ask(
    peer: Peer,
    peer_id: str,
    protocol: str,
    message: Message,
    reply: type[M],
    *,
    deadline_s: float,
    max_reply: int = ...,
) -> M: ...
@overload
async def ask(
    peer: Peer,
    peer_id: str,
    protocol: str,
    message: Message,
    reply: UnionType,
    *,
    deadline_s: float,
    max_reply: int = ...,
) -> Message: ...
async def ask(
    peer: Peer,
    peer_id: str,
    protocol: str,
    message: Message,
    reply: type[M] | UnionType,
    *,
    deadline_s: float,
    max_reply: int = MAX_CONTROL_BYTES,
) -> Message:
    """Ask a connected peer; `reply` is the message type expected, or a union of them.

    Raises:
        PeerRefusedError: it answered with a `Refusal`; `code` is its reason code.
        NetError: it did not answer in time, or not with such a message.
    """
    body = await peer.request(
        peer_id, protocol, encode(message), max_reply=max_reply, deadline_s=deadline_s
    )
    expected: Any = reply | Refusal
    try:
        received: Message = decode(body, expected)
    except WireError as error:
        raise NetError(
            f"{peer_id} answered {type(message).__name__} with {error.message}"
        ) from error
    if isinstance(received, Refusal):
        raise PeerRefusedError(
            f"{peer_id} refused {type(message).__name__} ({received.code}): {received.sentence}",
            code=received.code,
        )
    return received


def answer(
    peer: Peer,
    protocol: str,
    request: type[M] | UnionType,
    handler: Callable[[Remote, Any], Awaitable[Message | Sending]],
    *,
    deadline_s: float,
    max_request: int = MAX_CONTROL_BYTES,
    concurrency: int = 64,
) -> None:
    """Answer requests of a type, or of a union of types. See `Peer.serve`."""
    expected: Any = request

    async def handle(remote: Remote, body: bytes) -> bytes | Reply:
        try:
            message = decode(body, expected)
        except WireError as error:
            raise PeerRefusedError(error.message, code="bad_message") from error
        reply = await handler(remote, message)
        if isinstance(reply, Sending):
            return Reply(encode(reply.message), reply.sent, reply.cut)
        return encode(reply)

    peer.serve(
        protocol, handle, max_request=max_request, deadline_s=deadline_s, concurrency=concurrency
    )
