"""Sensors: what files, tools and processes of each system say, read as this program reads it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import psutil

from echo_node.limits.settings import Limits
from echo_node.sensors.computer import Computer, family, resident
from echo_node.sensors.gpu import Card, Gpus, others
from echo_node.sensors.idle import from_ioreg, from_logind, idle_s, terminals_idle_s
from echo_node.sensors.power import from_sysfs
from echo_node.sensors.programs import running
from echo_node.sensors.temperature import warmest


def supply(root: Path, name: str, **files: str) -> None:
    (root / name).mkdir(parents=True, exist_ok=True)
    for file, text in files.items():
        (root / name / file).write_text(text + "\n")


def test_battery_and_mains_by_the_kernels_files(tmp_path: Path) -> None:
    assert from_sysfs(tmp_path / "none") is None
    assert from_sysfs(tmp_path) is None
    supply(tmp_path, "hidpp_0", type="Battery", scope="Device", status="Discharging")
    assert from_sysfs(tmp_path) is None  # the mouse's
    supply(tmp_path, "BAT0", type="Battery", status="Discharging")
    assert from_sysfs(tmp_path) is True
    supply(tmp_path, "AC", type="Mains", online="0")
    assert from_sysfs(tmp_path) is True
    supply(tmp_path, "ucsi", type="USB", online="1")
    assert from_sysfs(tmp_path) is False
    shutil.rmtree(tmp_path / "ucsi")
    supply(tmp_path, "BAT1", type="Battery", status="Not charging")
    assert from_sysfs(tmp_path) is False


def test_the_warmest_part_of_the_best_known_chip() -> None:
    def chip(*degrees: float | None) -> list[SimpleNamespace]:
        return [SimpleNamespace(current=value) for value in degrees]

    assert warmest({}) is None
    assert warmest({"nvme": chip(80.0)}) is None
    assert warmest({"acpitz": chip(99.0), "coretemp": chip(50.0, 61.0, None, 255.0, 0.0)}) == 61.0
    assert warmest({"acpitz": chip(0.0)}) is None


def test_idle_time_by_what_each_system_prints(tmp_path: Path) -> None:
    assert from_ioreg('  | |   "HIDIdleTime" = 12500000000\n') == 12.5
    assert from_ioreg("no such key") is None
    graphical = {"Type": "wayland", "IdleHint": "no", "IdleSinceHint": "0"}
    assert from_logind(graphical, 1000.0) == 0.0
    since = {**graphical, "IdleHint": "yes", "IdleSinceHint": "940000000"}
    assert from_logind(since, 1000.0) == 60.0
    assert from_logind({**since, "Type": "tty"}, 1000.0) is None
    assert from_logind({}, 1000.0) is None
    (tmp_path / "pts").mkdir()
    (tmp_path / "pts" / "0").touch()
    (tmp_path / "tty1").touch()
    (tmp_path / "pts" / "ptmx").touch()
    now = time.time()
    os.utime(tmp_path / "pts" / "0", (now - 30, now))
    os.utime(tmp_path / "tty1", (now - 900, now))
    os.utime(tmp_path / "pts" / "ptmx", (now, now))
    assert terminals_idle_s(tmp_path, now) == 30.0
    assert terminals_idle_s(tmp_path / "none", now) is None


@contextmanager
def program_called(name: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A real program of that name."""
    path = folder / name
    shutil.copy(shutil.which("sleep") or "", path)
    process = subprocess.Popen([path, "100"])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_listed_programs_are_found_while_they_run(tmp_path: Path) -> None:
    names = ("Echo-Test-Game.exe", "no-such-program")
    assert running(names) == ()
    with program_called("echo-test-game", tmp_path):
        assert running(names) == ("Echo-Test-Game.exe",)
    assert running(names) == ()
    assert running(["python3 -m x"]) == ()


def card(**fields: object) -> Card:
    usual: dict[str, object] = {
        "temperature": 50.0, "load": 10.0, "memory": 8 << 30, "memory_of": {},
        "computing": frozenset(), "share_of": None,
    }  # fmt: skip
    return Card(**{**usual, **fields})  # type: ignore[arg-type]


def test_who_else_uses_the_card() -> None:
    assert others([], {1}) == frozenset()
    assert others([card(computing=frozenset({1, 2}))], {1}) == {2}
    desktop = card(computing=frozenset({2}), share_of={3: 4, 4: 60, 1: 99})
    assert others([desktop], {1}) == {4}


def test_this_computer_can_be_read_whatever_it_has() -> None:
    limits = Limits(only_when_idle=True, pause_for=("no-such-program",))
    readings, own = Computer().read(limits, family(os.getpid()))
    assert readings.programs == ()
    assert own.ram >= psutil.Process().memory_info().rss // 2
    if not Gpus().read():
        assert (readings.gpu_programs, readings.gpu_temperature) == (None, None)
    idle = idle_s()
    assert idle is None or idle >= 0


def test_a_sensor_that_breaks_is_unknown_and_said_once(monkeypatch, caplog) -> None:  # type: ignore[no-untyped-def]
    def broken() -> float:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("echo_node.sensors.computer.cpu_temperature", broken)
    computer = Computer()
    for _ in range(2):
        readings, _ = computer.read(Limits(), ())
        assert readings.cpu_temperature is None
    assert caplog.text.count("the sensor for temperature does not work here") == 1


def test_memory_of_processes_that_end_meanwhile() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert resident([ended.pid]) == 0
    assert family(ended.pid) == [ended.pid]
