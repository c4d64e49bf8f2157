"""Serves the API from the hub's own trio process, with hypercorn's protocols.

Hypercorn parses HTTP; accepting connections is ours, because a server on the open network needs
what hypercorn has no setting for: a bound on connections, and a deadline for a client that does not
read (hypercorn shields its sends, so that such a client would also keep the hub from ending).
Headers must come within `HEADERS_S`, bodies within `guards.BODY_S`, and what is sent must be read
within `WRITE_S`. HTTP/1.1 alone is offered.
"""

from __future__ import annotations

import errno
import logging
import os
import secrets
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, cast

import trio
from hypercorn.config import Config
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState
from hypercorn.utils import wrap_app

from echo_hub.api.guards import Guards
from echo_hub.api.security import LEAST_TOKEN
from echo_hub.config.dashboard import DashboardSection
from echo_p2p.errors import ConfigError
from echo_p2p.nursery import open_nursery

log = logging.getLogger(__name__)

CONNECTIONS = 256
"""At a time; further ones wait to be accepted."""
HEADERS_S = 10.0
WRITE_S = 20.0
GRACE_S = 1.0
_HEADER_BYTES = 32 * 1024


class _Patient(trio.abc.HalfCloseableStream):
    """A TCP stream that gives up on a peer that does not read."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self.socket = stream.socket

    async def send_all(self, data: bytes | memoryview) -> None:
        with trio.move_on_after(WRITE_S) as late:
            await self._stream.send_all(data)
        if late.cancelled_caught:
            await trio.aclose_forcefully(self._stream)
            raise trio.BrokenResourceError("the client does not read")

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        return bytes(await self._stream.receive_some(max_bytes))

    async def aclose(self) -> None:
        await self._stream.aclose()


@asynccontextmanager
async def serving(app: Guards, section: DashboardSection, root: Path) -> AsyncIterator[str]:
    """Serve for the length of the block, which is given the URL. ConfigError if it cannot be."""
    tls = _tls(section, root)
    listeners = await _listen(section)
    port = listeners[0].socket.getsockname()[1]
    host = f"[{section.host}]" if ":" in section.host else section.host
    settings = _settings()
    context = WorkerContext(None)
    wrapped = wrap_app(cast("Any", app), 0, "asgi")
    limiter = trio.Semaphore(CONNECTIONS)

    async def answer(stream: trio.SocketStream) -> None:
        patient: Any = _Patient(stream)
        if tls is not None:
            patient = trio.SSLStream(patient, tls, server_side=True, https_compatible=True)
        try:
            await TCPServer(wrapped, settings, context, ConnectionState({}), patient)
        except Exception:  # a connection must not end the hub
            log.exception("a connection to the dashboard failed")
        finally:
            limiter.release()
            with trio.CancelScope(shield=True):
                await trio.aclose_forcefully(stream)

    async with open_nursery() as nursery:
        for listener in listeners:
            nursery.start_soon(_accept, listener, limiter, answer, nursery)
        yield f"{'https' if tls else 'http'}://{host}:{port}"
        await context.terminated.set()
        nursery.cancel_scope.cancel()


async def _accept(
    listener: trio.SocketListener, limiter: trio.Semaphore, answer: Any, nursery: trio.Nursery
) -> None:
    async with listener:
        while True:
            await limiter.acquire()
            try:
                stream = await listener.accept()
            except OSError as error:
                limiter.release()
                if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS):
                    raise
                log.warning("the dashboard cannot accept a connection: %s", error.strerror)
                await trio.sleep(0.2)
                continue
            nursery.start_soon(answer, stream)


async def _listen(section: DashboardSection) -> list[trio.SocketListener]:
    try:
        return list(await trio.open_tcp_listeners(section.port, host=section.host))
    except OSError as error:
        raise ConfigError(
            f"the dashboard cannot listen on {section.host} port {section.port}: "
            f"{(error.strerror or str(error)).lower()}.",
            fix="Set another dashboard.port in run.toml (0 takes a free one), or "
            "dashboard.enabled = false.",
        ) from error


def _tls(section: DashboardSection, root: Path) -> ssl.SSLContext | None:
    if not section.has_tls:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(root / section.tls_cert, root / section.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"dashboard.tls_cert and tls_key cannot be used: {error.strerror or error}.",
            fix="Both are PEM files, and the key belongs to the certificate.",
        ) from error
    return context


def _settings() -> Config:
    settings = Config()
    settings.accesslog = None
    settings.errorlog = logging.getLogger("echo_hub.api.http")
    settings.alpn_protocols = ["http/1.1"]
    settings.keep_alive_timeout = HEADERS_S
    settings.ssl_handshake_timeout = HEADERS_S
    settings.h11_max_incomplete_size = _HEADER_BYTES
    settings.h2_max_concurrent_streams = 8
    settings.include_server_header = False
    settings.graceful_timeout = GRACE_S
    return settings


def read_token(path: Path) -> str:
    """The secret in a token file, which is made if there is none; ConfigError if it is no good."""
    try:
        if not path.exists():
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            with suppress(FileExistsError), os.fdopen(os.open(path, flags, 0o600), "w") as file:
                file.write(secrets.token_urlsafe(32) + "\n")
        if path.stat().st_mode & 0o077:
            raise ConfigError(f"{path} can be read by others.", fix=f"chmod 600 {path}")
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the token file {path}: {error}.") from error
    if len(token) < LEAST_TOKEN:
        raise ConfigError(
            f"the token in {path} is shorter than {LEAST_TOKEN} characters.",
            fix="Delete the file, and a good one is made.",
        )
    return token
