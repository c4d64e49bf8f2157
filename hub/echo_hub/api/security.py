"""Who may use the API: tokens, sessions, the CSRF rule, and which Host names are ours. Pure.

Promises: a token is compared in constant time; a session's id is known to its browser alone (what
is kept here is a digest); wrong tokens are counted by network address (of IPv6: by /64) and in all,
and further ones are refused unread. Time comes in as an argument, in seconds.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from urllib.parse import urlsplit

from echo_hub.rollouts.doors import Allowances, network_of

SESSION_S = 12 * 3600.0
"""A session that nobody used for so long is over."""
LONGEST_SESSION_S = 7 * 86400.0
MOST_SESSIONS = 256
TRIES_AT_ONCE, TRIES_PER_S = 5, 1 / 30
"""Wrong tokens of one network address."""
LEAST_TOKEN = 16
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


def same(one: str, other: str) -> bool:
    """Are two secrets equal? Takes as long for any that are not."""
    digests = [sha256(text.encode("utf-8", "surrogatepass")).digest() for text in (one, other)]
    return hmac.compare_digest(*digests)


@dataclass(frozen=True)
class Session:
    """A browser that logged in, or anybody, where no token is wanted."""

    csrf: str
    since: float
    used: float


class TooManyTriesError(Exception):
    """Wrong tokens came too fast; `wait_s` until the next may be tried."""

    def __init__(self, wait_s: float) -> None:
        super().__init__(f"wait {wait_s:.0f} s")
        self.wait_s = wait_s


class Doorman:
    """Sessions and tries of one hub. Without a `token` everybody may do everything."""

    def __init__(self, token: str | None) -> None:
        self._token = token
        self._sessions: OrderedDict[bytes, Session] = OrderedDict()
        self._tries = Allowances(burst=TRIES_AT_ONCE, per_s=TRIES_PER_S)
        self._open = Session(secrets.token_urlsafe(24), 0.0, 0.0)

    @property
    def wants_token(self) -> bool:
        return self._token is not None

    @property
    def open_csrf(self) -> str:
        """What unsafe requests carry where no log-in is wanted."""
        return self._open.csrf

    def check_token(self, token: str, address: str, now: float) -> bool:
        """Is it the token? TooManyTriesError if its address may not try now."""
        place = (network_of(address) or address[:64]).encode()
        wait_s = self._tries.take(place, now)
        if wait_s > 0:
            self._tries.refund(place, now)  # a try that is not made costs nothing
            raise TooManyTriesError(wait_s)
        if self._token is None or not same(token, self._token):
            return False
        self._tries.refund(place, now)
        return True

    def open_session(self, now: float) -> tuple[str, Session]:
        """A new session and its id, for the cookie."""
        session_id = secrets.token_urlsafe(32)
        session = Session(secrets.token_urlsafe(24), now, now)
        self._sessions[_digest(session_id)] = session
        while len(self._sessions) > MOST_SESSIONS:
            self._sessions.popitem(last=False)
        return session_id, session

    def session(self, session_id: str | None, now: float) -> Session | None:
        """The session of a cookie, which is used now; None if there is none any more."""
        if self._token is None:
            return self._open
        if not session_id:
            return None
        key = _digest(session_id)
        session = self._sessions.get(key)
        if session is None:
            return None
        if now - session.used > SESSION_S or now - session.since > LONGEST_SESSION_S:
            del self._sessions[key]
            return None
        self._sessions[key] = session = replace(session, used=now)
        self._sessions.move_to_end(key)
        return session

    def close_session(self, session_id: str | None) -> None:
        """Log out."""
        if session_id:
            self._sessions.pop(_digest(session_id), None)


def is_ours(host: str | None, names: Collection[str]) -> bool:
    """May a request name this host?

    Localhost, the operator's names and plain IP addresses: a web site that points its own name at
    this hub (DNS rebinding) must say its own name.
    """
    if not host or len(host) > 300:
        return False
    try:
        name = urlsplit(f"//{host}").hostname
    except ValueError:
        return False
    if not name or "@" in host or "/" in host:
        return False
    name = name.rstrip(".").lower()
    if name == "localhost" or name in names:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_cross_site(headers: Mapping[str, str], scheme: str) -> bool:
    """Does a browser say that another site's page made this request?"""
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return True
    origin = headers.get("origin")
    return origin is not None and origin.lower() != f"{scheme}://{headers.get('host', '')}".lower()


def bearer(headers: Mapping[str, str]) -> str | None:
    """The token of an Authorization header."""
    kind, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" and token.strip() else None


def _digest(session_id: str) -> bytes:
    return sha256(session_id.encode("utf-8", "surrogatepass")).digest()
