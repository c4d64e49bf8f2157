"""`join --auto-update`: the newest signed release, fetched, checked, and installed between leases.

Promises: nothing is installed but a wheel whose digest the release names, in a release that the
shipped key signed and whose version is higher than this one's; a release that cannot be had never
keeps the node from working; what was tried and did not take is not tried again by the next start.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from echo_p2p import PROTOCOL, __version__
from echo_p2p.bootstrap_source import check_url
from echo_p2p.errors import BootstrapError, ReleaseError
from echo_p2p.release import ENVELOPE, Trust, is_wanted, open_release, wheel_path
from echo_p2p.upgrade import DISTRIBUTION, editable_source, installer
from echo_p2p.wire import MAX_SIGNED_BYTES, Release

CHECK_EVERY_S = 6 * 3600.0
FETCH_S = 600.0
INSTALL_S = 1800.0
TRIED = "ECHO_NODE_TRIED_RELEASE"
"""Variable with the version that the program before this one installed, or tried to."""


class Updater:
    """Of one program. Its methods block, and are to be called in a thread or before the node runs.

    Args:
        folder: where wheels are kept until they are installed.
        prefix: the environment that is upgraded.
    """

    def __init__(
        self,
        trust: Trust,
        folder: Path,
        *,
        version: str = __version__,
        prefix: Path | None = None,
    ) -> None:
        self.ready: tuple[Release, Path] | None = None
        """What is to be installed, and its wheel, which was checked."""
        self._trust = trust
        self._folder = folder
        self._version = version
        self._prefix = Path(sys.prefix) if prefix is None else prefix

    def look(self, *, protocol: int | None = PROTOCOL) -> Release | None:
        """Fetch a newer release, if there is one; ReleaseError if it cannot be had or is false.

        Args:
            protocol: what the network speaks; None: it speaks none of ours any more.
        """
        envelope = self._fetch(ENVELOPE, MAX_SIGNED_BYTES[Release] * 2)
        release = open_release(envelope, self._trust)
        tried = os.environ.get(TRIED) == release.version
        if tried or not is_wanted(release, ours=self._version, protocol=protocol):
            return None
        data = self._fetch(release.wheel, release.size)
        if len(data) != release.size or hashlib.sha256(data).digest() != release.sha256:
            raise ReleaseError(
                f"{release.wheel} is not the file that release {release.version} names; it is not "
                "installed."
            )
        path = wheel_path(self._folder, release)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        except OSError as error:
            raise ReleaseError(f"cannot write {path}: {error.strerror}.") from error
        self.ready = release, path
        return release

    def install(self) -> None:
        """Install what is ready, with the installer that made this environment; ReleaseError."""
        assert self.ready is not None
        release, path = self.ready
        command = install_command(self._prefix, path)
        os.environ[TRIED] = release.version
        try:
            subprocess.run(
                command, check=True, timeout=INSTALL_S, stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError) as error:
            said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
            raise ReleaseError(
                f"release {release.version} could not be installed: {said[-1] if said else ''}",
                fix=f"By hand: {' '.join(command)}",
            ) from error
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _fetch(self, name: str, most: int) -> bytes:
        import httpx2

        url = f"{self._trust.source.rstrip('/')}/{name}"
        try:
            check_url(url)
            data = b""
            with httpx2.stream("GET", url, follow_redirects=False, timeout=FETCH_S) as response:
                if response.status_code != 200:
                    raise ReleaseError(f"{url} answered {response.status_code}.")
                for part in response.iter_bytes():
                    data += part
                    if len(data) > most:
                        raise ReleaseError(f"{url} is larger than it may be.")
        except BootstrapError as error:
            raise ReleaseError(error.message, fix=error.fix) from error
        except (httpx2.HTTPError, OSError) as error:
            raise ReleaseError(f"cannot fetch {url}: {error}.") from error
        return data


def install_command(prefix: Path, wheel: Path) -> list[str]:
    """What installs a wheel into an environment; ReleaseError for a source tree.

    What an extra brought stays installed, so no extra is named.
    """
    made_by = installer(prefix)
    python = str(prefix / "bin" / "python")
    match made_by:
        case "pipx":
            return ["pipx", "runpip", DISTRIBUTION, "install", str(wheel)]
        case "uv tool" | "uv":
            return ["uv", "pip", "install", "--python", python, str(wheel)]
    if prefix == Path(sys.prefix) and editable_source():
        raise ReleaseError(
            f"this program runs from its source in {editable_source()}, which is not replaced.",
            fix="Leave --auto-update out, and pull.",
        )
    return [python, "-m", "pip", "install", "--quiet", str(wheel)]


def restart() -> None:
    """Become the program anew, with the same arguments; the installed release runs."""
    os.execv(sys.executable, [sys.executable, "-m", "echo_node.cli", *sys.argv[1:]])  # noqa: S606
