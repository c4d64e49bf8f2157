"""Where a bootstrap file comes from: a path, a URL, or the package.

Promises: what is returned is current and of this program's protocol; every failure says what is
wrong with which file, in a sentence that the person who was handed the file can act on.
"""

from __future__ import annotations

import ssl
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

import trio

from echo_p2p import PROTOCOL
from echo_p2p.bootstrap import FILE_NAME, Bootstrap
from echo_p2p.errors import BootstrapError, BootstrapFetchError, ConfigError, VersionError
from echo_p2p.toml import MAX_FILE_BYTES, parse_toml, read_toml
from echo_p2p.upgrade import upgrade_command

_READ_BYTES = 1 << 16
_ASK = "Ask the run's operator for the file again."
_ONLINE = "Are you online? Does the address open in a browser?"
_PORTAL = "Does this network want you to log in first? Open a browser, log in, and try again."


def default_path() -> Path:
    """The packaged file; in a source tree, the one at its root."""
    package = Path(str(resources.files("echo_p2p")))
    for candidate in (package / FILE_NAME, package.parent / FILE_NAME):
        if candidate.is_file():
            return candidate
    raise BootstrapError(f"this installation has no {FILE_NAME}.", fix="Name one with --bootstrap.")


async def load_bootstrap(
    source: str | None, *, deadline_s: float, now: datetime | None = None
) -> Bootstrap:
    """Read a bootstrap file from a path or a URL, or the packaged one.

    Args:
        now: for tests; this machine's clock by default.

    Raises:
        BootstrapError: it is missing, unreadable, wrong or expired; names file, line and field.
        VersionError: its network speaks another protocol than this program.
        BootstrapFetchError: the URL did not give it in time.
    """
    name = str(default_path()) if source is None else source
    if "://" in name:
        check_url(name)
        text = await _fetch(name, deadline_s)
    else:
        with _as_bootstrap_error("Is the path right? It is the file that the operator gave you."):
            text = read_toml(Path(name))
    _check_protocol(text, name)
    with _as_bootstrap_error(_ASK):
        found = parse_toml(text, Bootstrap, source=name)
    found.check_current(now or datetime.now(UTC), source=name)
    return found


@contextmanager
def _as_bootstrap_error(fix: str) -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        raise BootstrapError(error.message, fix=error.fix or fix) from error


def _check_protocol(text: str, name: str) -> None:
    """VersionError for another protocol, before anything else of the file is judged by ours."""
    try:
        theirs = tomllib.loads(text).get("protocol")
    except (ValueError, RecursionError):
        return  # said better by the parser proper
    if type(theirs) is not int or theirs == PROTOCOL:
        return
    if theirs > PROTOCOL:
        raise VersionError(
            f"this program is too old: the network of {name} speaks protocol {theirs}, and this "
            f"program speaks {PROTOCOL}.",
            fix=f"Upgrade it: {upgrade_command()}",
        )
    raise VersionError(
        f"the network of {name} speaks protocol {theirs}, which is older than this program's "
        f"{PROTOCOL}.",
        fix=_ASK,
    )


async def _fetch(url: str, deadline_s: float) -> str:
    with trio.move_on_after(deadline_s):
        text: str = await trio.to_thread.run_sync(  # libp2p brings the stubs of an older trio
            _download,
            url,
            deadline_s,
            abandon_on_cancel=True,  # type: ignore[call-arg]
        )
        return text
    raise BootstrapFetchError(f"{url} did not arrive in {deadline_s:.0f} s.", fix=_ONLINE)


def check_url(url: str) -> None:
    """Refuse what a bootstrap file must not come from: it holds the key all trust starts with."""
    parts = urlsplit(url)
    local = parts.hostname in ("127.0.0.1", "::1", "localhost")
    if not parts.hostname or parts.scheme not in ("https", "http"):
        raise BootstrapError(f"{url} is not an https:// address or a file.")
    if parts.scheme == "http" and not local:
        raise BootstrapError(
            f"{url} could be changed on its way to you.", fix="Use https://, or a file."
        )


def _download(url: str, deadline_s: float) -> str:
    import http.client
    import urllib.error
    import urllib.request

    class Redirects(urllib.request.HTTPRedirectHandler):
        def redirect_request(
            self, req: Any, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
        ) -> urllib.request.Request | None:
            try:
                check_url(newurl)
            except BootstrapError as error:
                raise BootstrapError(
                    f"{url} leads to {newurl}: {error.message}", fix=_PORTAL
                ) from error
            return super().redirect_request(req, fp, code, msg, headers, newurl)

    end = time.monotonic() + deadline_s
    data = b""
    try:
        opener = urllib.request.build_opener(Redirects)
        with opener.open(url, timeout=deadline_s) as response:
            if "html" in response.headers.get("Content-Type", ""):
                raise BootstrapFetchError(f"{url} answered with a web page.", fix=_PORTAL)
            while chunk := response.read1(_READ_BYTES):
                data += chunk
                if len(data) > MAX_FILE_BYTES:
                    raise BootstrapError(f"{url} is over {MAX_FILE_BYTES} bytes; no such file.")
                if time.monotonic() > end:
                    raise BootstrapFetchError(f"{url} did not arrive in {deadline_s:.0f} s.")
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BootstrapError(f"{url} is not UTF-8 text.") from error
    except urllib.error.HTTPError as error:
        raise BootstrapFetchError(
            f"{url} answered {error.code} {error.reason}.", fix=_ASK
        ) from error
    except (OSError, http.client.HTTPException) as error:
        raise BootstrapFetchError(f"cannot fetch {url}: {_why(error)}.", fix=_fix(error)) from error


def _why(error: Exception) -> object:
    reason = getattr(error, "reason", None) or error
    return getattr(reason, "strerror", None) or reason


def _fix(error: Exception) -> str:
    """A certificate that is not valid now is mostly a wrong clock; a name not found, no network."""
    reason = getattr(error, "reason", None)
    if isinstance(reason, ssl.SSLCertVerificationError):
        return (
            f"This computer's clock says {datetime.now(UTC):%d %B %Y %H:%M} UTC: set it if that is "
            f"wrong. {_PORTAL}"
        )
    return _ONLINE
