"""Every request passes here first: whose Host, how large, from which site, logged in or not.

Promises: a request that fails any of these reaches no route; every response carries the security
headers; a body is read within `BODY_S` and is no longer than `MOST_BODY`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import Any

import trio
from fastapi import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import RedirectResponse, Response

from echo_hub.api.errors import problem
from echo_hub.api.security import (
    SAFE_METHODS,
    Doorman,
    Session,
    TooManyTriesError,
    bearer,
    is_cross_site,
    is_ours,
    same,
)

MOST_BODY = 64 * 1024
BODY_S = 15.0
PUBLIC = ("/public", "/api/v1/public")
OPEN = frozenset({"/login", "/api/v1/session", "/api/v1/health", "/favicon.ico", "/robots.txt"})
"""Paths that everybody may ask for, also where a log-in is wanted."""
OPEN_FOLDERS = ("/static/",)

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "font-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'; manifest-src 'self'"
)
HEADERS = [
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), microphone=(), geolocation=(), payment=(), usb=()"),
]
_HSTS = (b"strict-transport-security", b"max-age=31536000")

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class _BodyError(HTTPException):
    """A body that is too large, or comes too slowly. FastAPI lets this kind of error through."""


class Guards:
    """ASGI middleware around the whole site.

    Args:
        names: host names that are ours.
        public: whether /public is served to everybody.
    """

    def __init__(self, app: App, *, doorman: Doorman, names: Collection[str], public: bool) -> None:
        self.fastapi = app
        self._app = app
        self._doorman = doorman
        self._names = frozenset(names)
        self._public = public

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":  # there is none here
                await send({"type": "websocket.close", "code": 1008})
                return
            await self._app(scope, receive, send)
            return
        started = unread = False
        headers = [*HEADERS, _HSTS] if scope["scheme"] == "https" else HEADERS

        async def guarded_send(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                given = {name for name, _ in message.get("headers", [])}
                extra = [pair for pair in headers if pair[0] not in given]
                if not scope["path"].startswith(OPEN_FOLDERS) and b"cache-control" not in given:
                    extra.append((b"cache-control", b"no-store"))
                if unread:  # of a body: the connection cannot be used again
                    extra.append((b"connection", b"close"))
                message = {**message, "headers": [*message.get("headers", []), *extra]}
            await send(message)

        def gave_up() -> None:
            nonlocal unread
            unread = True

        request = Request(scope)
        refusal = self._refusal(request)
        if refusal is not None:
            unread = request.method not in SAFE_METHODS
            await refusal(scope, receive, guarded_send)
            return
        try:
            await self._app(scope, _bounded(receive, gave_up), guarded_send)
        except _BodyError as error:  # of what reads its body by itself
            if not started:
                response = problem(error.status_code, "too_large", error.detail)
                await response(scope, receive, guarded_send)

    def _refusal(self, request: Request) -> Response | None:
        """Why a request goes no further; None if it does."""
        headers, path = request.headers, request.url.path
        if not is_ours(headers.get("host"), self._names):
            return problem(
                400,
                "wrong_host",
                "this hub is not called so.",
                "Name it in dashboard.names, or use its IP address.",
            )
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit()) or int(length[:12]) > MOST_BODY:
            return problem(413, "too_large", f"bodies may have {MOST_BODY} bytes.")
        if self._public and request.method in SAFE_METHODS and _is_within(path, PUBLIC):
            return None
        unsafe = request.method not in SAFE_METHODS
        if unsafe and is_cross_site(headers, request.url.scheme):
            return problem(403, "cross_site", "another site's page may not ask this.")
        if path in OPEN or path.startswith(OPEN_FOLDERS):
            return self._csrf(request) if unsafe and request.method != "POST" else None
        token = bearer(headers)
        if token is not None:
            return self._by_token(token, request)
        if session_of(self._doorman, request) is None:
            return _log_in_first(request)
        return self._csrf(request) if unsafe else None

    def _by_token(self, token: str, request: Request) -> Response | None:
        address = request.client.host if request.client else ""
        if not self._doorman.wants_token:
            return None
        try:
            if self._doorman.check_token(token, address, time.monotonic()):
                return None
        except TooManyTriesError as error:
            wait = {"retry-after": str(int(error.wait_s) + 1)}
            return problem(429, "too_many_tries", "too many wrong tokens.", headers=wait)
        return problem(401, "wrong_token", "this is not the hub's token.")

    def _csrf(self, request: Request) -> Response | None:
        session = session_of(self._doorman, request)
        given = request.headers.get("x-csrf-token", "")
        if session is not None and same(given, session.csrf):
            return None
        return problem(
            403,
            "csrf",
            "the header X-CSRF-Token is missing or wrong.",
            "GET /api/v1/session says what it must be.",
        )


def _log_in_first(request: Request) -> Response:
    if request.method in SAFE_METHODS and "text/html" in request.headers.get("accept", ""):
        return RedirectResponse("/login", status_code=303)
    return problem(
        401,
        "log_in",
        "log in first.",
        "Open /login in a browser, or send Authorization: Bearer TOKEN.",
        headers={"www-authenticate": "Bearer"},
    )


def session_of(doorman: Doorman, request: HTTPConnection) -> Session | None:
    """The session that a request's cookie names."""
    return doorman.session(request.cookies.get(cookie_name(request)), time.monotonic())


def cookie_name(request: HTTPConnection) -> str:
    """Under TLS a name that no other host, and nobody without TLS, can set."""
    return "__Host-echo-hub" if request.url.scheme == "https" else "echo-hub"


def _is_within(path: str, places: tuple[str, ...]) -> bool:
    return any(path == place or path.startswith(place + "/") for place in places)


def _bounded(receive: Receive, gave_up: Callable[[], None]) -> Receive:
    """`receive` for a body that is short and comes in time; `gave_up` is called for any other."""
    seen, deadline = 0, math.inf
    complete = False

    async def bounded() -> Message:
        nonlocal seen, complete, deadline
        # from when it is first asked for: an export works for minutes before it listens
        deadline = min(deadline, trio.current_time() + BODY_S)
        if complete:  # from now on only the end of the connection is waited for
            return await receive()
        with trio.move_on_at(deadline) as late:
            message = await receive()
        if late.cancelled_caught:
            gave_up()
            raise _BodyError(408, "the body did not come in time.")
        seen += len(message.get("body", b""))
        if seen > MOST_BODY:
            gave_up()
            raise _BodyError(413, f"bodies may have {MOST_BODY} bytes.")
        complete = message["type"] != "http.request" or not message.get("more_body", False)
        return message

    return bounded
