"""The node as a service: what systemd and launchd are told, and that they are asked in order."""

from __future__ import annotations

import os
import plistlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo_node.service.manager import Launchd, Systemd, manager, this_command
from echo_node.service.units import Service, launchd_plist, systemd_unit
from echo_p2p.errors import ConfigError, ProcessError

SERVICE = Service(
    ("/opt/my tools/echo-node", "join", "--bootstrap", 'a "b" 100% $HOME \\ c'),
    {"ECHO_NODE_HOME": "/home/me/with space"},
)


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    real = Service((sys.executable, "-c", "pass"), SERVICE.environment)
    unit = tmp_path / "echo-node.service"
    unit.write_text(systemd_unit(real))
    said = subprocess.run(
        ["systemd-analyze", "--user", "verify", "--man=no", unit],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
    )
    # keys of systemd 254 are passed over by an older one, with a warning
    newer = ("RestartSteps", "RestartMaxDelaySec")
    complaints = [line for line in said.stderr.splitlines() if "echo-node.service" in line]
    assert [line for line in complaints if not any(key in line for key in newer)] == []
    assert said.returncode == 0


def test_what_the_words_of_a_unit_mean_is_undone() -> None:
    start = next(x for x in systemd_unit(SERVICE).splitlines() if x.startswith("ExecStart="))
    assert start == (
        'ExecStart="/opt/my tools/echo-node" "join" "--bootstrap" "a \\"b\\" 100%% $$HOME \\\\ c"'
    )


@given(st.text(min_size=1, max_size=20))
def test_no_word_adds_a_line_to_a_unit(word: str) -> None:
    plain = systemd_unit(Service(("echo-node", "word"))).count("\n")
    try:
        text = systemd_unit(Service(("echo-node", word)))
    except ValueError:
        assert any(ord(letter) < 32 for letter in word)
    else:
        assert text.count("\n") == plain


@pytest.mark.parametrize(("code", "seen"), [(0, 0), (2, 0), (3, 0), (13, 0), (5, 5), (9, 9)])
def test_launchd_starts_again_what_another_start_may_mend(code: int, seen: int) -> None:
    command = (sys.executable, "-c", f"raise SystemExit({code}) # 'quoted'")
    words = plistlib.loads(launchd_plist(Service(command)))["ProgramArguments"]
    assert subprocess.run(words, check=False).returncode == seen


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """systemctl and launchctl that write down what they are asked: no session manager runs here."""
    log = tmp_path / "asked"
    for name in ("systemctl", "launchctl"):
        script = tmp_path / name
        script.write_text(f'#!/bin/sh\necho "$@" >> {log}\n[ ! -e {tmp_path}/broken ] || exit 1\n')
        script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    return log


def test_systemd_is_asked_in_order(asked: Path, tmp_path: Path) -> None:
    state = Systemd().install(SERVICE)
    assert state.installed
    assert Path(state.file).read_text() == systemd_unit(SERVICE)
    assert Path(state.file) == tmp_path / "home/.config/systemd/user/echo-node.service"
    assert asked.read_text().splitlines() == [
        "--user daemon-reload",
        "--user enable echo-node.service",
        "--user restart echo-node.service",
        "--user is-active echo-node.service",
    ]
    gone = Systemd().uninstall()
    assert not gone.installed
    assert not Path(state.file).exists()
    assert "--user disable --now echo-node.service" in asked.read_text()


def test_launchd_is_asked_in_order(asked: Path) -> None:
    state = Launchd().install(SERVICE)
    assert state.installed
    assert plistlib.loads(Path(state.file).read_bytes())["RunAtLoad"] is True
    assert asked.read_text().splitlines()[0].startswith("bootstrap gui/")
    assert not Launchd().uninstall().installed


def test_what_the_manager_complains_of_is_passed_on(asked: Path, tmp_path: Path) -> None:
    (tmp_path / "broken").touch()
    with pytest.raises(ProcessError, match="daemon-reload failed"):
        Systemd().install(SERVICE)


def test_a_platform_without_a_manager_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="neither systemd nor launchd"):
        manager("win32")


def test_the_command_is_this_environments_own() -> None:
    assert Path(this_command(("join",))[0]).is_absolute()
