"""One place in a pool on a Ray cluster: a scorer process on whatever machine Ray has put us.

An object of this class lives in a process of Ray's (an actor). It runs the same scorer, with the
same limits, as a pool on the hub's own machine does, and speaks to it in the same frames. What goes
between it and the hub are bytes of our own messages.
"""

from __future__ import annotations

import io
import os
import selectors
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

import msgspec

from echo_hub.scoring.confine import inherited
from echo_hub.scoring.process import ANSWERS, Answer, Failed, Setup
from echo_p2p.wire import decode, encode

_HEADER = struct.Struct(">I")
_PIPE_BYTES = 1 << 18
_START_S = 120.0
_STDERR_BYTES = 4096


class ScorerLostError(Exception):
    """The scorer hung or crashed; its place has a new one. Not an EchoError: Ray carries it."""


class Place:
    """A scorer, started anew when it is lost."""

    def __init__(
        self, setup: bytes, files: Mapping[str, bytes], environment: Sequence[str]
    ) -> None:
        """
        Args:
            setup: a `Setup`; its `base` is replaced by a folder with `files`, the tokenizer's.
        """
        self._folder = Path(tempfile.mkdtemp(prefix="echo-scorer-"))
        for name, content in files.items():
            (self._folder / Path(name).name).write_bytes(content)
        ours = decode(setup, Setup)
        self._setup = encode(msgspec.structs.replace(ours, base=str(self._folder)))
        self._environment = inherited(environment)
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] = io.BytesIO()

    def start(self) -> bytes:
        """The scorer's answer to its setup; makes one if there is none."""
        self._process = self._run()
        return self._exchange(self._setup, _START_S)

    def ask(self, command: bytes, deadline_s: float) -> bytes:
        """The scorer's answer; ScorerLostError if it comes to none."""
        if self._process is None:
            self.start()
        body = self._exchange(command, deadline_s)
        answer: Answer = decode(body, ANSWERS)
        if isinstance(answer, Failed) and answer.spent:
            self._end()
        return body

    def close(self) -> None:
        """End the scorer and forget its files."""
        self._end()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _run(self) -> subprocess.Popen[bytes]:
        ours = {name: os.environ[name] for name in self._environment if name in os.environ}
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - as long as its process
        return subprocess.Popen(
            [sys.executable, "-m", "echo_hub.scoring.process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**ours, "PYTHONHASHSEED": "0"},
            start_new_session=True,
        )

    def _exchange(self, body: bytes, deadline_s: float) -> bytes:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        deadline = time.monotonic() + deadline_s
        try:
            process.stdin.write(_HEADER.pack(len(body)) + body)
            process.stdin.flush()
            (size,) = _HEADER.unpack(self._read(_HEADER.size, deadline))
            return self._read(size, deadline)
        except (OSError, TimeoutError) as error:
            why = f"{error}{self._last_words()}"
            self._end()
            raise ScorerLostError(why) from error

    def _read(self, size: int, deadline: float) -> bytes:
        process = self._process
        assert process is not None
        assert process.stdout is not None
        data = b""
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while len(data) < size:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise TimeoutError("scorer did not answer in time")
                more = os.read(process.stdout.fileno(), min(_PIPE_BYTES, size - len(data)))
                if not more:
                    raise ConnectionError(f"scorer ended with code {process.wait(_START_S)}")
                data += more
        return data

    def _last_words(self) -> str:
        self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, self._errors.tell() - _STDERR_BYTES))
        return "\n" + self._errors.read().decode(errors="replace")

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        self._errors.close()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
