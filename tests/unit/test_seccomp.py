"""Filters on system calls: what the kernel lets a process do under them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from echo_hub.scoring import seccomp

pytestmark = pytest.mark.skipif(seccomp.machine() is None, reason="no such filters here")

PROGRAM = """
import os, socket, subprocess, sys, threading
from echo_hub.scoring import seccomp
column = seccomp.machine()
answer = []
go = threading.Event()
def late():
    go.wait()
    answer.append({task})
other = threading.Thread(target=late)
other.start()
seccomp.install(seccomp.{filter}(column), column)
go.set()
other.join()
thread = threading.Thread(target=lambda: answer.append("a thread"))
thread.start()
thread.join()
print(*answer)
"""
TRY = """
def attempt(what):
    try:
        what()
    except OSError as error:
        return type(error).__name__
    return "done"
"""


def under(filter_name: str, task: str) -> str:
    source = TRY + PROGRAM.format(filter=filter_name, task=f"attempt(lambda: {task})")
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("task", "outcome"),
    [
        ("socket.socket(socket.AF_INET)", "OSError"),
        ("socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)", "OSError"),
        ("socket.socket(socket.AF_UNIX)", "OSError"),
        ("socket.socketpair()", "done"),
        ("subprocess.run(['true'], check=True)", "done"),
    ],
)
def test_no_network(task: str, outcome: str) -> None:
    # a thread that was there before is under the filter too, and new ones can be started
    assert under("no_network", task) == f"{outcome} a thread"


@pytest.mark.parametrize(
    ("task", "outcome"),
    [
        ("os.fork()", "BlockingIOError"),
        ("subprocess.run(['true'], check=True)", "BlockingIOError"),
        ("os.posix_spawn('/bin/true', ['true'], {{}})", "BlockingIOError"),
        ("open('/dev/null').close()", "done"),
    ],
)
def test_one_process(task: str, outcome: str) -> None:
    assert under("one_process", task.replace("{{}}", "{}")) == f"{outcome} a thread"


def test_what_a_process_starts_is_under_its_filter_too() -> None:
    inner = "import socket; socket.socket()"
    task = f"subprocess.run([sys.executable, '-c', {inner!r}], stderr=-3, check=True)"
    source = TRY.replace("OSError", "subprocess.CalledProcessError") + PROGRAM.format(
        filter="no_network", task=f"attempt(lambda: {task})"
    )
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split() == ["CalledProcessError", "a", "thread"], done.stderr
