"""What a service manager is told to run: a systemd user unit, or a launchd agent. Pure text.

Both start the node at log-in, start it again when it fails, and never when it ended in order (the
run is complete, or somebody said `echo-node leave`) or could not work however often it were started
(a wrong configuration, a ban). systemd 254 and newer wait longer after each failure, older ones and
launchd as long as after the first.
"""

from __future__ import annotations

import plistlib
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

NAME = "echo-node"
LABEL = "net.echo-p2p.node"
FIRST_PAUSE_S = 10
LONGEST_PAUSE_S = 600
HOPELESS = (2, 3, 13)
"""Exit codes that another start would only repeat: configuration, identity, ban."""


@dataclass(frozen=True)
class Service:
    """A command to run, with full paths, in an environment."""

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    log: Path | None = None
    """Where launchd puts what is printed; systemd has its journal."""


def systemd_unit(service: Service) -> str:
    """The text of `echo-node.service`."""
    lines = [
        "[Unit]",
        "Description=echo-p2p node: trains a language model while this computer is free",
        "StartLimitIntervalSec=0",
        "",
        "[Service]",
        "Type=exec",
        "ExecStart=" + " ".join(_quoted(word) for word in service.command),
        *(f"Environment={_quoted(f'{k}={v}')}" for k, v in sorted(service.environment.items())),
        "Restart=on-failure",
        f"RestartSec={FIRST_PAUSE_S}",
        "RestartSteps=6",
        f"RestartMaxDelaySec={LONGEST_PAUSE_S}",
        "RestartPreventExitStatus=" + " ".join(map(str, HOPELESS)),
        "TimeoutStopSec=90",
        "Nice=10",
        "NoNewPrivileges=yes",
        "",
        "[Install]",
        "WantedBy=default.target",
    ]
    return "\n".join(lines) + "\n"


def launchd_plist(service: Service) -> bytes:
    """The text of the agent's property list."""
    log = str(service.log) if service.log is not None else "/dev/null"
    return plistlib.dumps(
        {
            "Label": LABEL,
            "ProgramArguments": ["/bin/sh", "-c", _unless_hopeless(service.command)],
            "EnvironmentVariables": dict(service.environment),
            "RunAtLoad": True,
            "KeepAlive": {"SuccessfulExit": False},
            "ThrottleInterval": FIRST_PAUSE_S,
            "ExitTimeOut": 90,
            "ProcessType": "Background",
            "LowPriorityIO": True,
            "Nice": 10,
            "StandardOutPath": log,
            "StandardErrorPath": log,
        }
    )


def _unless_hopeless(command: tuple[str, ...]) -> str:
    """launchd starts whatever failed again; so failures that would only repeat are no failures."""
    codes = "|".join(map(str, HOPELESS))
    return f"{shlex.join(command)}; code=$?; case $code in {codes}) exit 0;; esac; exit $code"


def _quoted(word: str) -> str:
    """A word as systemd reads it back: in quotes, with its own escapes and specifiers undone."""
    if any(ord(letter) < 32 for letter in word):
        raise ValueError(f"{word!r} has a control character.")
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"'
