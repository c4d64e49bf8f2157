"""Typed requests: messages of `wire` in, messages of `wire` out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from echo_p2p.errors import NetError, PeerRefusedError, WireError
from echo_p2p.net.host import Peer
from echo_p2p.net.stream import Remote
from echo_p2p.wire import MAX_CONTROL_BYTES, Message, Refusal, decode, encode

M = TypeVar("M", bound=Message)


async def ask(
    peer: Peer,
    peer_id: str,
    protocol: str,
    message: Message,
    reply: type[M],
    *,
    deadline_s: float,
    max_reply: int = MAX_CONTROL_BYTES,
) -> M:
    """Ask a peer, and decode its reply as `reply` (a message type, or a union of them).

    Raises:
        PeerRefusedError: it answered with a `Refusal`; `code` is its reason code.
        NetError: it did not answer in time, or not with such a message.
    """
    body = await peer.request(
        peer_id, protocol, encode(message), max_reply=max_reply, deadline_s=deadline_s
    )
    try:
        answer = decode(body, reply | Refusal)  # type: ignore[arg-type]
    except WireError as error:
        raise NetError(
            f"{peer_id} answered {type(message).__name__} with {error.message}"
        ) from error
    if isinstance(answer, Refusal):
        raise PeerRefusedError(
            f"{peer_id} refused {type(message).__name__} ({answer.code}): {answer.sentence}",
            code=answer.code,
        )
    return answer


def answer(
    peer: Peer,
    protocol: str,
    request: type[M],
    handler: Callable[[Remote, M], Awaitable[Message]],
    *,
    max_request: int = MAX_CONTROL_BYTES,
    deadline_s: float,
    concurrency: int = 64,
) -> None:
    """Answer requests that decode as `request` (a message type, or a union of them)."""

    async def handle(remote: Remote, body: bytes) -> bytes:
        try:
            message: Any = decode(body, request)
        except WireError as error:
            raise PeerRefusedError(error.message, code="bad_message") from error
        return encode(await handler(remote, message))

    peer.serve(
        protocol, handle, max_request=max_request, deadline_s=deadline_s, concurrency=concurrency
    )
