"""Puts the node into the hands of the platform's service manager, for this user alone.

Promises: nothing is written but one file of ours, and that is removed by `uninstall`; nothing needs
root; what the manager says when it refuses is passed on.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from echo_node.service.units import LABEL, NAME, Service, launchd_plist, systemd_unit
from echo_p2p.errors import ConfigError, ProcessError
from echo_p2p.files import write_whole

_ANSWER_S = 30.0


@dataclass(frozen=True)
class State:
    """`state` in the manager's own word."""

    installed: bool
    running: bool
    state: str
    file: str
    logs: str
    """The command that shows them."""


class Manager(Protocol):
    """A service manager that knows one service: ours."""

    def install(self, service: Service) -> State:
        """Write the file, start at each log-in from now on, and start now."""
        ...

    def uninstall(self) -> State:
        """Stop it, and remove the file."""
        ...

    def state(self) -> State: ...


def manager(system: str = sys.platform) -> Manager:
    """The one of this platform; ConfigError if there is none that we know."""
    if system == "darwin":
        return Launchd()
    if system == "linux" and shutil.which("systemctl"):
        return Systemd()
    raise ConfigError(
        "this computer has neither systemd nor launchd to run the node as a service.",
        fix="Start `echo-node join` with whatever starts your programs at log-in.",
    )


def this_command(arguments: Sequence[str]) -> tuple[str, ...]:
    """`echo-node` of this environment, by full path: a service has no PATH of yours."""
    beside = Path(sys.executable).with_name("echo-node")
    if beside.is_file():
        return (str(beside), *arguments)
    return (sys.executable, "-m", "echo_node.cli", *arguments)


class Systemd:
    """A user unit, by `systemctl --user`."""

    @property
    def _file(self) -> Path:
        home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
        return Path(home) / "systemd" / "user" / f"{NAME}.service"

    def install(self, service: Service) -> State:
        _write(self._file, systemd_unit(service).encode())
        self._run("daemon-reload")
        self._run("enable", f"{NAME}.service")
        self._run("restart", f"{NAME}.service")
        return self.state()

    def uninstall(self) -> State:
        if self._file.exists():
            self._run("disable", "--now", f"{NAME}.service")
            self._file.unlink()
            self._run("daemon-reload")
        return self.state()

    def state(self) -> State:
        answer = _run(["systemctl", "--user", "is-active", f"{NAME}.service"], may_fail=True)
        said = answer.strip() or "unknown"
        return State(
            installed=self._file.exists(),
            running=said in ("active", "activating", "reloading"),
            state=said,
            file=str(self._file),
            logs=f"journalctl --user -u {NAME} -f",
        )

    def _run(self, *words: str) -> None:
        _run(["systemctl", "--user", *words])


class Launchd:
    """An agent of the user's session, by `launchctl`."""

    @property
    def _file(self) -> Path:
        return Path.home() / "Library" / "LaunchAgents" / f"{LABEL}.plist"

    @property
    def _domain(self) -> str:
        return f"gui/{os.getuid()}"

    def install(self, service: Service) -> State:
        log = service.log or Path.home() / "Library" / "Logs" / f"{NAME}.log"
        if self._file.exists():
            _run(["launchctl", "bootout", f"{self._domain}/{LABEL}"], may_fail=True)
        _write(self._file, launchd_plist(Service(service.command, service.environment, log)))
        _run(["launchctl", "bootstrap", self._domain, str(self._file)])
        return self.state()

    def uninstall(self) -> State:
        if self._file.exists():
            _run(["launchctl", "bootout", f"{self._domain}/{LABEL}"], may_fail=True)
            self._file.unlink()
        return self.state()

    def state(self) -> State:
        said = _run(["launchctl", "print", f"{self._domain}/{LABEL}"], may_fail=True)
        words = [line.split("=", 1)[1].strip() for line in said.splitlines() if "state =" in line]
        state = words[0] if words else "not loaded"
        return State(
            installed=self._file.exists(),
            running=state == "running",
            state=state,
            file=str(self._file),
            logs=f"tail -f ~/Library/Logs/{NAME}.log",
        )


def _write(path: Path, data: bytes) -> None:
    try:
        write_whole(path, data)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}.") from error


def _run(command: Sequence[str], *, may_fail: bool = False) -> str:
    """What a command printed; ProcessError with what it complained about."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_ANSWER_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ProcessError(f"{' '.join(command)} did not answer: {error}.") from error
    if done.returncode and not may_fail:
        said = (done.stderr or done.stdout).strip() or f"code {done.returncode}"
        raise ProcessError(
            f"{' '.join(command)} failed: {said}",
            fix="Over ssh, or as another user, there may be no session for it: "
            "`loginctl enable-linger` gives you one."
            if command[0] == "systemctl"
            else "",
        )
    return done.stdout
