"""Code of a policy, run: what a program can do in the sandbox, and what it cannot."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
import time
from pathlib import Path

import psutil
import pytest

from echo_hub.tasks import make_task, sandbox
from echo_hub.tasks.sandbox import Limits, check_sandbox, run_python
from echo_p2p.errors import ConfigError, SandboxError


def _can_sandbox() -> bool:
    try:
        check_sandbox()
    except SandboxError:
        return False
    return True


needs_bubblewrap = pytest.mark.skipif(not _can_sandbox(), reason="bubblewrap makes no sandbox here")


@needs_bubblewrap
def test_a_program_reads_computes_and_writes() -> None:
    ran = run_python("import sys, math\nprint(math.prod(map(int, sys.stdin)))", "6\n7\n")
    assert (ran.stdout, ran.stderr, ran.code, ran.well) == ("42\n", "", 0, True)
    ran = run_python("print('é', flush=True)\nraise ValueError('x')")
    assert (ran.stdout, ran.code, ran.well) == ("é\n", 1, False)
    assert "ValueError: x" in ran.stderr
    assert run_python("import sys; sys.exit(7)").code == 7
    assert run_python("import os; os.kill(os.getpid(), 11)").code == -11
    assert "SyntaxError" in run_python("def").stderr
    assert "null bytes" in run_python("\0").stderr


@needs_bubblewrap
@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import os; print(os.environ.get('HUB_SECRET'), os.getuid())", "None 65534"),
        ("import os; print(os.path.exists({home!r}))", "False"),
        ("import os; print(sorted(n for n in os.listdir('/proc') if n.isdigit()))", "['1', '2']"),
        ("import os; print(len(os.listdir('/proc/self/fd')) <= 4)", "True"),
        ("open('/etc/passwd')", "FileNotFoundError"),
        ("open('/usr/mine', 'w')", "Read-only file system"),
        ("open('/mine', 'w')", "Read-only file system"),
        ("open('/code.py', 'w')", "Read-only file system"),
        ("open('/tmp/mine', 'w').write('x'); print(open('/tmp/mine').read())", "x"),
        ("f = open('/tmp/big', 'wb')\nwhile True: f.write(bytes(1 << 20))", "OSError"),
        ("import socket; socket.create_connection(('127.0.0.1', {port}))", "Error"),
        ("import socket; socket.create_connection(('192.0.2.1', 80), 1)", "Network is unreachable"),
        ("import os; os.fork()", "BlockingIOError"),
        ("import subprocess; subprocess.run(['true'])", "BlockingIOError"),
        ("import os; os.unshare(os.CLONE_NEWUSER)", "Error"),
        ("import ctypes; print(ctypes.CDLL(None).unshare(0x10000000))", "-1"),
        ("import ctypes; print(ctypes.CDLL(None).ptrace(16, 1, 0, 0))", "-1"),
        ("b = bytearray(1 << 30)", "MemoryError"),
        ("import resource as r; r.setrlimit(r.RLIMIT_AS, (-1, -1))", "Error"),
        ("import threading; t = threading.Thread(target=print, args=(5,)); t.start()", "5"),
        ("import numpy", "ModuleNotFoundError"),
        ("import os; print(os.getcwd())", "/tmp"),
    ],
)
def test_what_a_program_can_and_cannot_do(
    code: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HUB_SECRET", "a key")
    with socket.create_server(("127.0.0.1", 0)) as server:
        code = code.replace("{home!r}", repr(str(Path(__file__).resolve())))
        ran = run_python(code.replace("{port}", str(server.getsockname()[1])))
    assert ran.code is not None
    assert said in ran.stdout + ran.stderr


@needs_bubblewrap
@pytest.mark.parametrize(
    ("code", "truncated"),
    [
        ("while True: pass", False),
        ("import time; time.sleep(1000)", False),
        ("import os, time; os.close(1); os.close(2); time.sleep(1000)", False),
        ("import signal, time; signal.signal(15, lambda *a: None); time.sleep(1000)", False),
        ("while True: print('x' * 1000)", True),
        ("import sys\nwhile True: sys.stderr.write('x' * 1000)", True),
    ],
)
def test_time_and_output_end_it_and_nothing_is_left(code: str, truncated: bool) -> None:
    before = set(psutil.Process().children(recursive=True))
    limits = Limits(seconds=10 if truncated else 1, output=5000)
    started = time.monotonic()
    ran = run_python(code, limits=limits)
    assert (ran.code, ran.truncated, ran.well) == (None, truncated, False)
    assert len(ran.stdout) <= 5000
    assert len(ran.stderr) <= 5000
    if not truncated:
        assert time.monotonic() - started >= 1
    assert set(psutil.Process().children(recursive=True)) <= before


@needs_bubblewrap
def test_code_is_a_reward(tmp_path: Path) -> None:
    rows = [
        {"ask": f"Write a function that adds {i}.", "tests": f"assert add(1) == {1 + i}"}
        for i in range(40)
    ]
    path = tmp_path / "code.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    options = {"prompt": "{ask}", "answer": "tests", "verifier": "python"}
    task = make_task(f"dataset:{path}", options, 0)
    prompt = task.prompt("train", 0)
    number = prompt.text.split()[-1].rstrip(".")
    right = f"def add(x):\n    return x + {number}\n"
    answers = [
        f"Like this:\n```python\n{right}```\n", right, right + "assert False", "add = abs",
        "import os; os._exit(0)", "import sys; sys.exit(0)", "",
    ]  # fmt: skip
    rewards = [task.reward(prompt, answer) for answer in answers]  # type: ignore[arg-type]
    assert rewards == [1, 1, 0, 0, 0, 0, 0]
    path.write_text(json.dumps({"ask": "a", "tests": "assert ("}), encoding="utf-8")
    with pytest.raises(
        ConfigError, match=r":1: column 'tests' is 'assert \(', and it is no Python"
    ):
        make_task(f"dataset:{path}", options, 0)


@needs_bubblewrap
def test_it_runs_under_the_limits_of_a_scorer() -> None:
    source = (
        "from echo_hub.scoring.confine import close_network, limit_memory\n"
        "from echo_hub.tasks.sandbox import run_python\n"
        "limit_memory(512); close_network()\n"
        "print(run_python('print(6 * 7)').stdout)"
    )
    done = sandbox.subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert done.stdout == "42\n\n", done.stderr


def test_too_much_is_not_run() -> None:
    ran = run_python("#" * (sandbox.MAX_CODE + 1))
    assert (ran.code, ran.stderr) == (1, "the program, or its input, is too long.")


def test_without_bubblewrap_nothing_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = tmp_path / "ran"
    code = f"open({str(mark)!r}, 'w')"
    check_sandbox.cache_clear()
    try:
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(SandboxError, match=r"bwrap is not installed|no Linux machine"):
            run_python(code)
        refuses = tmp_path / "bwrap"
        refuses.write_text(
            "#!/bin/sh\necho 'bwrap: setting up uid map: Permission denied' >&2\nexit 1"
        )
        refuses.chmod(0o755)
        if sys.platform == "linux":
            with pytest.raises(SandboxError, match="uid map: Permission denied"):
                run_python(code)
    finally:
        check_sandbox.cache_clear()
    assert not mark.exists()
    assert os.environ["PATH"] == str(tmp_path)
    assert shutil.which("bwrap") == str(refuses)
