"""Real `echo-hub` and `echo-node` processes for tests: start, read their events, kill, clean up.

Waiting is always for an event or for a process's end, within a deadline that only a hang reaches.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from echo_hub.commands.presets import preset
from echo_hub.commands.setup_run import init_run
from echo_hub.commands.template import render_config
from echo_hub.config import load_config

Event = dict[str, Any]


def named(name: str, **facts: object) -> Callable[[Event], bool]:
    def wanted(event: Event) -> bool:
        return event["event"] == name and all(event.get(k) == v for k, v in facts.items())

    return wanted


_WARDEN = """
import os, signal, sys
alive = set()
for line in sys.stdin:
    sign, pid = line.split()
    (alive.add if sign == "+" else alive.discard)(int(pid))
for pid in alive:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
"""


class _Warden:
    """Ends the programs of a test process that was killed: a process that hears of its end."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def note(self, sign: str, pid: int) -> None:
        """A program began (`+`) or ended (`-`)."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-S", "-c", _WARDEN],
                stdin=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        assert self._process.stdin is not None
        self._process.stdin.write(f"{sign} {pid}\n")
        self._process.stdin.flush()


_warden = _Warden()


class Program:
    """One child process that writes JSON events, a line each, to its stdout.

    Its standard input stays open as long as this process lives.
    """

    def __init__(self, module: str, *args: str, log: Path) -> None:
        self.events: list[Event] = []
        self._arrived = threading.Condition()
        self._log = log
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *args],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        _warden.note("+", self.pid)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._arrived:
                self.events.append(json.loads(line))
                self._arrived.notify_all()
        with self._arrived:
            self._arrived.notify_all()

    def wait_for(self, wanted: Callable[[Event], bool], *, deadline_s: float = 300) -> Event:
        """The first event, past or to come, that is wanted."""

        def found() -> Event | None:
            return next((event for event in self.events if wanted(event)), None)

        with self._arrived:
            self._arrived.wait_for(
                lambda: found() is not None or not self._reader.is_alive(), deadline_s
            )
            event = found()
        if event is None:
            raise AssertionError(
                f"the event did not come; those that did: {self.events[-5:]}\n"
                f"{self._log.read_text(errors='replace')[-3000:]}"
            )
        return event

    def named(self, name: str) -> list[Event]:
        """All events so far with this name."""
        with self._arrived:
            return [event for event in self.events if event["event"] == name]

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        """kill -9 of the process itself, not of its children: they must notice by themselves."""
        self._process.kill()
        self._process.wait(30)
        _warden.note("-", self.pid)

    def wait(self, deadline_s: float = 180) -> int:
        """The exit code, once it has ended."""
        code = self._process.wait(deadline_s)
        _warden.note("-", self.pid)
        self._reader.join(30)
        return code

    def stop(self) -> None:
        """End it, whatever state it is in."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()
            try:
                self._process.wait(45)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(20)
        _warden.note("-", self.pid)
        self._reader.join(30)


class Stage:
    """A run's folder and the programs of one test; `close` ends and removes everything."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.run = root / "run"
        self._programs: list[Program] = []

    def init(self, port: int, **overrides: dict[str, Any]) -> None:
        """A run's folder as `echo-hub init` makes it, with some settings changed."""
        folder = init_run(
            self.run, run_id="e2e", model="addmix3", hosts=[], port=port, local_demo=False
        )
        network = load_config(folder.config).network.model_dump(mode="json")
        dashboard = {"port": 0, **overrides.get("dashboard", {})}
        network |= overrides.get("network", {})
        changes = {**overrides, "network": network, "dashboard": dashboard}
        config = preset("addmix3", run_id="e2e", overrides=changes)
        folder.config.write_text(render_config(config), encoding="utf-8")

    def ledger(self) -> sqlite3.Connection:
        """The run's ledger, read only."""
        return sqlite3.connect(f"file:{self.run / 'ledger.sqlite'}?mode=ro", uri=True)

    def hub(self) -> Program:
        program = Program(
            "echo_hub.cli", "serve", str(self.run / "run.toml"), "--json",
            log=self.root / "hub.log",
        )  # fmt: skip
        self._programs.append(program)
        return program

    def node(self, number: int, *extra: str) -> Program:
        program = Program(
            "echo_node.cli", "join",
            "--bootstrap", str(self.run / "bootstrap_peers.toml"),
            "--data-dir", str(self.root / f"node-{number}"),
            "--listen", "/ip4/127.0.0.1/tcp/0",
            "--threads", "1", "--limit", "priority=normal",
            "--json", *extra,
            log=self.root / f"node-{number}.log",
        )  # fmt: skip
        self._programs.append(program)
        return program

    def cheat(self, number: int, way: str) -> Program:
        """A node that cheats in this way (`echo_node.cheat`) from its first answer on."""
        program = Program(
            "echo_node.cheat", way,
            "--bootstrap", str(self.run / "bootstrap_peers.toml"),
            "--data-dir", str(self.root / f"node-{number}"),
            log=self.root / f"node-{number}.log",
        )  # fmt: skip
        self._programs.append(program)
        return program

    def close(self) -> None:
        for program in reversed(self._programs):
            program.stop()
