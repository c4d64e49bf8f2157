"""The answering side: what happens to streams that peers open to us.

Promises: nothing a remote sends, and nothing a handler raises, ends more than the one stream; every
whole request gets a reply, a `Refusal` at worst; a request must arrive, and be carried out, within
the protocol's deadline; at most `concurrency` requests of one peer are under way on a protocol, the
others wait in their streams, unread. A handler is cancelled when its stream is over, so nobody
works for a peer that is gone.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

import trio

from echo_p2p.errors import EchoError, IdentityError, NetError, PeerRefusedError
from echo_p2p.identity import public_key_of
from echo_p2p.net import tuning
from echo_p2p.net.stream import Remote, Stream
from echo_p2p.wire import BULK_PROTOCOLS, Refusal, encode


@dataclass(frozen=True)
class Reply:
    """A reply, and what is called once: with True when it was sent, False when it could not be.

    When `cut` is cancelled, it is not sent any further, and its stream is reset.
    """

    body: bytes
    sent: Callable[[bool], None] = lambda _: None
    cut: trio.CancelScope = field(default_factory=trio.CancelScope)


Handler = Callable[[Remote, bytes], Awaitable[bytes | Reply]]
StreamHandler = Callable[[Remote, Stream], Awaitable[None]]

_log = logging.getLogger(__name__)


def stream_acceptor(protocol: str, handler: StreamHandler) -> Callable[[Any], Awaitable[None]]:
    """What libp2p calls with each new stream of a protocol."""

    async def accept(net_stream: Any) -> None:
        peer_id = str(net_stream.muxed_conn.peer_id)
        stream = Stream(net_stream, peer_id, protocol)
        if protocol in BULK_PROTOCOLS:
            net_stream.muxed_stream.serve_bulk()
        done = False
        try:
            remote = Remote(peer_id, public_key_of(peer_id), net_stream.muxed_conn.remote_ip)
            with trio.CancelScope() as scope:
                stream.when_over(scope.cancel)
                await handler(remote, stream)
                done = True
        except Exception as error:  # noqa: BLE001 - no handler takes the host down
            _report(error, protocol, peer_id)
        finally:
            await (stream.close() if done else stream.reset())

    return accept


def _report(error: Exception, protocol: str, peer_id: str) -> None:
    """Streams break all the time; anything else is worth a line, and a bug its traceback."""
    group = error if isinstance(error, ExceptionGroup) else ExceptionGroup("", [error])
    if group.split((NetError, IdentityError, trio.TooSlowError))[1] is None:
        _log.debug("%s of %s: %s", protocol, peer_id, error)
    elif isinstance(error, EchoError):
        _log.warning("%s of %s: %s", protocol, peer_id, error)
    else:
        _log.error("the handler of %s failed", protocol, exc_info=error)


class Service:
    """Requests on one protocol, one after the other in each stream."""

    def __init__(
        self,
        protocol: str,
        handler: Handler,
        *,
        max_request: int,
        deadline_s: float,
        concurrency: int,
    ) -> None:
        self._protocol = protocol
        self._handler = handler
        self._max_request = max_request
        self._deadline_s = deadline_s
        self._concurrency = concurrency
        self._slots: WeakValueDictionary[str, trio.Semaphore] = WeakValueDictionary()

    async def answer(self, remote: Remote, stream: Stream) -> None:
        """Answer a stream's requests until it is idle for `IDLE_S`, or ends."""
        slots = self._slots.get(remote.peer_id)
        if slots is None:
            slots = self._slots[remote.peer_id] = trio.Semaphore(self._concurrency)
        size: int | None = 1
        while size and size <= tuning.MAX_FRAME_BYTES:  # else no next frame could be found
            with trio.move_on_after(tuning.IDLE_S) as idle:
                size = await stream.next_size()
            if idle.cancelled_caught or size is None:
                return
            async with slots:
                reply = await self._reply(remote, stream, size)
                if isinstance(reply, bytes):
                    reply = Reply(reply)
                left = False
                try:
                    with trio.fail_after(self._deadline_s), reply.cut:
                        await stream.send(reply.body)
                        left = True
                finally:
                    reply.sent(left)
                if not left:
                    raise NetError(f"{remote.peer_id} was too slow to take a reply.")

    async def _reply(self, remote: Remote, stream: Stream, size: int) -> bytes | Reply:
        if not size:
            return _refusal("bad_message", "an empty request.")
        if size > self._max_request:
            with trio.fail_after(self._deadline_s):
                if size <= tuning.MAX_FRAME_BYTES:
                    await stream.skip(size)
            return _refusal(
                "too_large", f"a request of {size} bytes; {self._max_request} are allowed."
            )
        with trio.fail_after(self._deadline_s):
            body = await stream.receive(size, deadline_s=None)
        with trio.move_on_after(self._deadline_s) as handling:
            reply = await self._carry_out(remote, body)
        if handling.cancelled_caught:
            return _refusal("deadline", f"not carried out in {self._deadline_s:g} s.")
        return reply

    async def _carry_out(self, remote: Remote, body: bytes) -> bytes | Reply:
        try:
            return await self._handler(remote, body)
        except PeerRefusedError as error:
            return _refusal(error.code, error.message)
        except EchoError as error:
            _log.info("%s of %s: %s", self._protocol, remote.peer_id, error)
            return _refusal("error", str(error))
        except Exception:  # noqa: BLE001 - no handler takes the host down
            _log.exception("the handler of %s failed", self._protocol)
            return _refusal("internal", "the request could not be carried out.")


def _refusal(code: str, sentence: str) -> bytes:
    return encode(Refusal(code=code, sentence=sentence[:1000]))
