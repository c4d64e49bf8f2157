"""Runs code that a policy wrote: `run_python(code, stdin, limits)`, for rewards.

The sandbox is bubblewrap's (https://github.com/containers/bubblewrap): namespaces of its own for
files, processes, network, users and names. Inside there are the system's programs and this Python's
standard library, read-only, an empty `/tmp`, and nothing of the hub: not its files, not its
environment, not its processes, no network. The code is one process (threads are), since a filter of
system calls refuses it others; so its limits of memory and time are limits of all it does. There is
no weaker way: without bubblewrap, `run_python` raises and the reward is a recorded failure.

What the code does, well or badly, is a `Ran`; it never raises for that.
"""

from __future__ import annotations

import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO

from echo_hub.scoring import seccomp
from echo_p2p.errors import SandboxError

MIB = 1 << 20
MAX_CODE = MIB
"""Bytes of code, and of standard input 64 times as many."""
_PROBE_S = 20.0
_GRACE_S = 5.0
_PIPE_BYTES = 65536
_NOBODY = "65534"

# takes its limits before the code has a say; what the parent could not set for bubblewrap itself
_RUNNER = """\
import resource, sys
memory, cpu, size, files = map(int, sys.argv[1:5])
for what, most in (
    (resource.RLIMIT_AS, memory), (resource.RLIMIT_CPU, cpu), (resource.RLIMIT_FSIZE, size),
    (resource.RLIMIT_NOFILE, files), (resource.RLIMIT_CORE, 0),
):
    _, hard = resource.getrlimit(what)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(what, (most, most))
with open("/code.py", "rb") as file:
    code = compile(file.read(), "code.py", "exec")
sys.argv = ["code.py"]
exec(code, {"__name__": "__main__"})
"""


@dataclass(frozen=True)
class Limits:
    """Seconds of wall clock and CPU; MiB of address space and of `/tmp`; bytes of each output."""

    seconds: float = 5.0
    memory: int = 256
    disk: int = 16
    output: int = 65536


@dataclass(frozen=True)
class Ran:
    """What came of it. `code` is the exit code, or minus the signal; None if it ran out of time.

    `truncated`: more was written than `Limits.output`, and it was ended there.
    """

    stdout: str
    stderr: str
    code: int | None
    truncated: bool
    seconds: float

    @property
    def well(self) -> bool:
        """It came to its end by itself, without an error."""
        return self.code == 0 and not self.truncated


def run_python(code: str, stdin: str = "", limits: Limits | None = None) -> Ran:
    """Run a program in the sandbox; SandboxError only if there can be no sandbox here.

    Args:
        code: Python source, with this Python's standard library and nothing else.
    """
    limits = limits or Limits()
    source, given = code.encode(errors="replace"), stdin.encode(errors="replace")
    if len(source) > MAX_CODE or len(given) > 64 * MAX_CODE:
        return Ran("", "the program, or its input, is too long.", 1, truncated=False, seconds=0.0)
    check_sandbox()
    return _run(source, given, limits)


@cache
def check_sandbox() -> None:
    """SandboxError, with the reason, if there is no sandbox on this machine.

    Once there was one, it looks no more.
    """
    ran = _run(b"print('here')", b"", Limits(seconds=_PROBE_S))
    if ran.stdout != "here\n":
        said = ran.stderr.strip() or ("it took too long" if ran.code is None else "it said nothing")
        raise SandboxError(
            f"bubblewrap cannot make a sandbox here: {said[:500]}",
            fix="It needs user namespaces: in a container they are often forbidden, and some "
            "systems allow them to chosen programs alone (AppArmor).",
        )


def _run(source: bytes, given: bytes, limits: Limits) -> Ran:
    program = shutil.which("bwrap")
    column = seccomp.machine()
    if program is None or column is None:
        raise SandboxError(
            "code of a policy is run in bubblewrap's sandbox only, and "
            + ("bwrap is not installed." if column is not None else "this is no Linux machine."),
            fix="Install the package bubblewrap on the hub's machine (x86-64 or arm64 Linux).",
        )
    with ExitStack() as stack:
        code = stack.enter_context(_file_with(source))
        runner = stack.enter_context(_file_with(_RUNNER.encode()))
        rules = stack.enter_context(_file_with(seccomp.one_process(column)))
        stdin = stack.enter_context(_file_with(given))
        files = (code.fileno(), runner.fileno(), rules.fileno())
        started = time.monotonic()
        process = subprocess.Popen(
            [program, *_arguments(*files, limits)],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=files,
            env={},
            start_new_session=True,
        )
        try:
            outputs, in_time = _collect(process, started + limits.seconds, limits.output)
        finally:
            _end(process)
    truncated = any(len(output) > limits.output for output in outputs)
    stdout, stderr = (output[: limits.output].decode(errors="replace") for output in outputs)
    exit_code = process.returncode if in_time and not truncated else None
    if exit_code is not None and exit_code > 128:  # how bubblewrap tells of a signal
        exit_code = 128 - exit_code
    return Ran(stdout, stderr, exit_code, truncated, time.monotonic() - started)


def _file_with(content: bytes) -> IO[bytes]:
    file = tempfile.TemporaryFile()  # noqa: SIM115 - the caller's stack closes it
    file.write(content)
    file.seek(0)
    return file


def _arguments(code: int, runner: int, rules: int, limits: Limits) -> list[str]:
    python = Path(sys.base_prefix).resolve()
    places: list[str] = []
    for folder in ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc/ld.so.cache"):
        path = Path(folder)
        if path.is_symlink():
            places += ["--symlink", str(path.readlink()), folder]
        elif path.exists():
            places += ["--ro-bind", folder, folder]
    if not python.is_relative_to("/usr"):
        places += ["--ro-bind", str(python), str(python)]
    executable = Path(sys.base_exec_prefix).resolve() / "bin" / Path(sys.executable).resolve().name
    return [
        "--unshare-all", "--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL",
        "--uid", _NOBODY, "--gid", _NOBODY, "--hostname", "sandbox",
        *places,
        "--proc", "/proc", "--dev", "/dev",
        "--size", str(limits.disk * MIB), "--tmpfs", "/tmp",  # noqa: S108 - the sandbox's own
        "--size", str(MIB), "--tmpfs", "/dev/shm",  # noqa: S108
        "--ro-bind-data", str(code), "/code.py", "--ro-bind-data", str(runner), "/runner.py",
        "--remount-ro", "/", "--chdir", "/tmp", "--setenv", "PATH", "/usr/bin:/bin",  # noqa: S108
        "--seccomp", str(rules),
        "--", str(executable), "-I", "-S", "-B", "-X", "utf8", "/runner.py",
        str(limits.memory * MIB), str(int(limits.seconds) + 1), str(limits.disk * MIB), "64",
    ]  # fmt: skip


def _collect(
    process: subprocess.Popen[bytes], deadline: float, most: int
) -> tuple[Sequence[bytes], bool]:
    """Both outputs, at most one pipe's content over `most` bytes each; and if it ended in time."""
    outputs = [bytearray(), bytearray()]
    assert process.stdout is not None
    assert process.stderr is not None
    with selectors.DefaultSelector() as selector:
        for output, pipe in zip(outputs, (process.stdout, process.stderr), strict=True):
            selector.register(pipe, selectors.EVENT_READ, output)
        while selector.get_map():
            left = deadline - time.monotonic()
            ready = selector.select(max(0.0, left)) if left > 0 else []
            if not ready:
                return [bytes(output) for output in outputs], False
            for key, _ in ready:
                data = os.read(key.fd, _PIPE_BYTES)
                key.data.extend(data)
                if len(key.data) > most:
                    return [bytes(output) for output in outputs], True
                if not data:
                    selector.unregister(key.fileobj)
    try:
        process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:  # closed both its outputs, and goes on
        return [bytes(output) for output in outputs], False
    return [bytes(output) for output in outputs], True


def _end(process: subprocess.Popen[bytes]) -> None:
    """End bubblewrap, and with it (--die-with-parent) all that is in the sandbox."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(_GRACE_S)
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
