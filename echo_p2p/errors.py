"""The one error hierarchy.

Every message says what happened, to what, and (in `fix`) what to do about it. `exit_code` is what a
command ends with when the error reaches its top; docs/operator.md and docs/volunteer.md list them.
"""

from __future__ import annotations


class EchoError(Exception):
    """Base of all errors this project raises on purpose.

    Args:
        message: what happened, to what.
        fix: what the reader can do about it, if anything.
    """

    exit_code = 1

    def __init__(self, message: str, *, fix: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.message} {self.fix}".strip()


def lone_cause(group: BaseExceptionGroup[BaseException]) -> EchoError | None:
    """The error to show for several that came at once: the first, if all of them are ours."""
    ours, others = group.split(EchoError)
    if ours is None or others is not None:
        return None
    first: BaseException = ours
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return first if isinstance(first, EchoError) else None


class ConfigError(EchoError):
    """A configuration or bootstrap file is missing, unreadable or wrong."""

    exit_code = 2


class BootstrapError(ConfigError):
    """A bootstrap file is missing, unreadable, wrong, expired, or without the run asked for."""


class FolderError(ConfigError):
    """The data folder is none, or cannot be written."""


class ListenError(ConfigError):
    """What is to be listened on is no address for that."""


class VersionError(ConfigError):
    """This program, or the other side, is too old. The fix has the exact command."""


class ReleaseError(ConfigError):
    """A release of this program cannot be had or installed, or is not to be trusted."""


class IdentityError(EchoError):
    """A key file is missing, corrupt, or readable by others."""

    exit_code = 3


class WireError(EchoError):
    """Bytes from a peer are not a message of ours (truncated, oversized, unknown, wrong type)."""

    exit_code = 4


class EnvelopeError(WireError):
    """An envelope is malformed or of another protocol version or kind."""


class SignatureError(EnvelopeError):
    """An envelope's signature is false, or by another key than the one required."""


class NetError(EchoError):
    """The network failed us: a peer is unreachable, silent, or closed on us."""

    exit_code = 5


class UnreachableError(NetError):
    """No address of a peer could be dialled; `tried` says how each of them failed."""

    def __init__(self, message: str, *, fix: str = "", tried: str = "") -> None:
        super().__init__(message, fix=fix)
        self.tried = tried


class BootstrapFetchError(UnreachableError):
    """A bootstrap file could not be fetched from its URL."""


class PortError(NetError):
    """A port cannot be listened on: another program has it, or it is not this machine's."""


class DeadlineError(NetError):
    """A peer did not answer in time."""


class PeerRefusedError(NetError):
    """A peer answered with an error. `code` is the reason code it gave."""

    def __init__(self, message: str, *, code: str, fix: str = "") -> None:
        super().__init__(message, fix=fix)
        self.code = code


class ApiRefusedError(EchoError):
    """A hub refused a request to its API. `status` is that of HTTP, `code` the reason code."""

    exit_code = 5

    def __init__(self, message: str, *, status: int, code: str, fix: str = "") -> None:
        super().__init__(message, fix=fix)
        self.status = status
        self.code = code


class ArtifactError(EchoError):
    """An artifact, its manifest or one of its chunks is not what it must be."""

    exit_code = 6


class ManifestError(ArtifactError):
    """A manifest is inconsistent, or breaks a limit."""


class ChunkError(ArtifactError):
    """A chunk's bytes do not match its digest."""


class DeltaError(ArtifactError):
    """A delta is malformed, or does not give the artifact that it promises."""


class RollbackError(ArtifactError):
    """A version older than one already seen was offered as the newest."""


class FarVersionError(ArtifactError):
    """A version was offered that is too far ahead of the newest one seen to be believed."""


class StoreError(ArtifactError):
    """The on-disk store cannot do it: no room, locked by another process, a name out of bounds."""


class DiskFullError(StoreError):
    """There is no room on the disk, or the store may not have more of it."""


class DirectoryError(EchoError):
    """The DHT process is down or refused a record. Never fatal to a node."""

    exit_code = 7


class ProcessError(EchoError):
    """A child process died, hung, or broke its protocol."""

    exit_code = 8


class EngineError(EchoError):
    """An engine cannot load, activate or generate."""

    exit_code = 9


class FitError(EngineError):
    """The base model does not fit on this machine."""


class LedgerError(EchoError):
    """The hub's ledger is missing, of another run, or cannot be written."""

    exit_code = 10


class LearnerError(EchoError):
    """The learner refused a step: non-finite loss, gradient or weights, or a broken checkpoint."""

    exit_code = 11


class UpdateRefusedError(LearnerError):
    """The learner computed an update and would not apply it; its state is as before.

    `why` is a `learner.guard.Why`; `back_to` the newest version known to be good, if that is an
    older one than the learner is at.
    """

    def __init__(self, message: str, *, why: str, back_to: int | None = None) -> None:
        super().__init__(message)
        self.why = why
        self.back_to = back_to


class RunFailedError(EchoError):
    """A run ended without reaching what was asked of it (the demo's reward did not rise)."""

    exit_code = 12


class TaskError(EchoError):
    """A task could not make a prompt or score an answer: a failure, and never a reward of zero."""

    exit_code = 15


class SandboxError(TaskError):
    """A policy's code cannot be run safely on this machine, and so not at all."""


class NoAnswerError(EchoError):
    """A policy's text has no clear answer in it. The message says why, to whoever wrote it."""


class BannedError(EchoError):
    """The hub has banned this node from its run."""

    exit_code = 13


class DialogueError(EchoError):
    """A multi-turn task's environment is unknown to this program, or cannot reply."""

    exit_code = 14


class NotRunningError(EchoError):
    """No node is running here, or it does not answer."""

    exit_code = 16


class AlreadyRunningError(EchoError):
    """A node with this identity is running already."""

    exit_code = 17


class StoppedError(EchoError):
    """Somebody stopped the program before it was done."""

    exit_code = 130
