"""Which check explains which failure of `join`: the one mapping.

A test holds it against the whole error hierarchy: an error that a node can end with and that has no
check here fails it.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from echo_p2p import errors
from echo_p2p.errors import EchoError

CHECK_OF: dict[type[EchoError], str] = {
    errors.BootstrapError: "bootstrap",
    errors.BootstrapFetchError: "bootstrap",
    errors.ConfigError: "limits",
    errors.FolderError: "folder",
    errors.ListenError: "port",
    errors.PortError: "port",
    errors.VersionError: "software",
    errors.ReleaseError: "software",
    errors.IdentityError: "identity",
    errors.WireError: "hub",
    errors.NetError: "hub",
    errors.BannedError: "hub",
    errors.ArtifactError: "hub",
    errors.StoreError: "folder",
    errors.AlreadyRunningError: "folder",
    errors.DiskFullError: "disk",
    errors.ProcessError: "engine",
    errors.EngineError: "engine",
    errors.FitError: "fit",
    errors.DialogueError: "software",
}
"""By the nearest kind above an error's own."""

NEVER_OF_A_NODE: frozenset[type[EchoError]] = frozenset(
    {
        errors.ApiRefusedError,
        errors.DirectoryError,
        errors.LedgerError,
        errors.LearnerError,
        errors.RunFailedError,
        errors.TaskError,
        errors.NoAnswerError,
        errors.NotRunningError,
        errors.StoppedError,
    }
)
"""What `join` does not end with, and what is below it."""


def check_for(error: EchoError) -> str | None:
    """The check that explains an error; None for one that is not a node's."""
    return check_for_kind(type(error))


def check_for_kind(kind: type[EchoError]) -> str | None:
    """See `check_for`."""
    for above in kind.__mro__:
        if above in NEVER_OF_A_NODE:
            return None
        if above in CHECK_OF:
            return CHECK_OF[above]
    return None


def hint(error: EchoError, *, bootstrap: str | None = None, data_dir: Path | None = None) -> str:
    """The command that looks into a failure of `join`, with what `join` was given; or nothing."""
    check = check_for(error)
    if check is None:
        return ""
    words = ["echo-node", "doctor", check]
    words += ["--bootstrap", bootstrap] if bootstrap else []
    words += ["--data-dir", str(data_dir)] if data_dir else []
    return f"To look into it: {shlex.join(words)}"
