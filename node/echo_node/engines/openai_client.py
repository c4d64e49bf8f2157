"""Talking to an OpenAI-compatible server over HTTP, as to any stranger.

Promises: every request ends: with its answer, or with an EngineError; no answer is larger than was
allowed for it; nothing is followed elsewhere, and nothing is decompressed. `ServerGoneError` is the
one that may pass: the server was not reached, went away, or is overloaded.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import anyio
import httpx2
import msgspec

from echo_p2p.errors import EngineError

_CONNECT_S = 10.0
_MOST_LINE = 1 << 20
_MOST_WORDS = 400  # of a server's own message
_PASSING = (408, 425, 429, 502, 503, 504)


class ServerGoneError(EngineError):
    """The server cannot be reached now; it may come back."""


class ServerRefusedError(EngineError):
    """The server answered with an error."""

    def __init__(self, message: str, *, status: int, body: bytes) -> None:
        super().__init__(message)
        self.status = status
        self.body = body


class Client:
    """One server.

    Args:
        url: where its `/v1` is, with or without that.
        key: what it wants as a bearer token, if it does.
        connections: most requests at once.
    """

    def __init__(self, url: str, *, key: str = "", connections: int = 64) -> None:
        self._root = url.rstrip("/").removesuffix("/v1")
        headers = {"accept-encoding": "identity"}
        if key:
            headers["authorization"] = f"Bearer {key}"
        self._http = httpx2.AsyncClient(
            headers=headers,
            limits=httpx2.Limits(max_connections=connections + 4),
            follow_redirects=False,
            trust_env=False,
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def get(self, path: str, *, deadline_s: float, most: int = 1 << 22) -> bytes:
        """The body of an answer to GET."""
        with self._deadline(deadline_s):
            async with self._open("GET", path, None, deadline_s) as response:
                return await _body(response, most)

    async def post(
        self, path: str, body: Mapping[str, Any], *, deadline_s: float, most: int = 1 << 24
    ) -> bytes:
        """The body of an answer to POST."""
        with self._deadline(deadline_s):
            async with self._open("POST", path, body, deadline_s) as response:
                return await _body(response, most)

    async def stream(
        self, path: str, body: Mapping[str, Any], *, silence_s: float, most: int
    ) -> AsyncIterator[bytes]:
        """The events of an answer to POST, each the bytes after `data: `, until `[DONE]`.

        Args:
            silence_s: longest wait for the next bytes.
            most: bytes of all events together.
        """
        async with self._open("POST", path, body, silence_s) as response:
            async for line in _lines(response, most):
                if line == b"data: [DONE]":
                    return
                if line.startswith(b"data: "):
                    yield line.removeprefix(b"data: ")
        raise ServerGoneError("the server broke off in the middle of an answer.")

    @contextmanager
    def _deadline(self, deadline_s: float) -> Iterator[None]:
        try:
            with anyio.fail_after(deadline_s):
                yield
        except TimeoutError as error:
            raise ServerGoneError(
                f"the server at {self._root} did not answer in {deadline_s:.0f} s."
            ) from error

    @asynccontextmanager
    async def _open(
        self, method: str, path: str, body: Mapping[str, Any] | None, silence_s: float
    ) -> AsyncIterator[httpx2.Response]:
        request = self._http.build_request(
            method,
            self._root + path,
            content=None if body is None else msgspec.json.encode(body),
            headers={"content-type": "application/json"},
            timeout=httpx2.Timeout(silence_s, connect=min(_CONNECT_S, silence_s)),
        )
        try:
            response = await self._http.send(request, stream=True)
            try:
                if response.status_code != 200:
                    raise _refusal(path, response, await _body(response, 1 << 16, cut=True))
                yield response
            finally:
                await response.aclose()
        except (httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL) as error:
            words = str(error) or type(error).__name__
            raise ServerGoneError(f"the server at {self._root} is not there: {words}.") from error


def _refusal(path: str, response: httpx2.Response, body: bytes) -> EngineError:
    status = response.status_code
    words = " ".join(body.decode("utf-8", "replace").split())[:_MOST_WORDS]
    message = f"the server answers {status} to {path}: {words}"
    if status in _PASSING:
        return ServerGoneError(message)
    return ServerRefusedError(message, status=status, body=body)


async def _body(response: httpx2.Response, most: int, *, cut: bool = False) -> bytes:
    found = bytearray()
    async for part in response.aiter_raw():
        found += part
        if len(found) > most:
            if cut:
                break
            raise EngineError(f"the server's answer is over {most} bytes.")
    return bytes(found)


async def _lines(response: httpx2.Response, most: int) -> AsyncIterator[bytes]:
    rest, total = b"", 0
    async for part in response.aiter_raw():
        total += len(part)
        if total > most:
            raise EngineError(f"the server's answer is over {most} bytes.")
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            yield line.rstrip(b"\r")
        if len(rest) > _MOST_LINE:
            raise EngineError(f"the server sends a line of over {_MOST_LINE} bytes.")
