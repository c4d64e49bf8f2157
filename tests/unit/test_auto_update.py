"""Signed releases: only those of the shipped key, only newer ones, and whole."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from echo_node import update
from echo_node.commands import join as join_command
from echo_node.update import Updater, install_command
from echo_p2p import PROTOCOL, release
from echo_p2p.errors import ReleaseError
from echo_p2p.identity import Identity
from echo_p2p.release import ENVELOPE, Trust, is_newer, is_wanted, shipped, sign_release
from echo_p2p.wire import Release

KEY = Identity.create()
NEWER = "99.0.1"


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """A folder, over HTTP on loopback."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *words: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder)) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(autouse=True)
def _untried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(update.TRIED, "")  # so that what a test leaves there goes with it


@pytest.fixture
def source(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "releases").mkdir()
    with served(tmp_path / "releases") as address:
        yield address


def a_wheel(folder: Path, version: str = NEWER) -> Path:
    """A program of that name and version, and nothing in it."""
    wheel = folder / f"echo_p2p-{version}-py3-none-any.whl"
    info = f"echo_p2p-{version}.dist-info"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: echo-p2p\nVersion: {version}\n"
        )
        file.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        file.writestr(f"{info}/RECORD", "")
    return wheel


def publish(
    tmp_path: Path, *, version: str = NEWER, key: Identity = KEY, protocol: int = PROTOCOL
) -> Path:
    wheel = a_wheel(tmp_path / "releases", version)
    data = wheel.read_bytes()
    made = Release(
        version=version, protocol=protocol, wheel=wheel.name, size=len(data),
        sha256=hashlib.sha256(data).digest(), at=1.0,
    )  # fmt: skip
    (tmp_path / "releases" / ENVELOPE).write_bytes(sign_release(made, key))
    return wheel


def an_updater(tmp_path: Path, source: str, **parts: object) -> Updater:
    trust = Trust(key=KEY.peer_id, source=source)
    return Updater(trust, tmp_path / "updates", version="1.2.3", **parts)  # type: ignore[arg-type]


def test_a_newer_signed_release_is_fetched_whole(tmp_path: Path, source: str) -> None:
    wheel, updater = publish(tmp_path), an_updater(tmp_path, source)
    found = updater.look()
    assert found is not None
    assert updater.ready is not None
    assert updater.ready[1].read_bytes() == wheel.read_bytes()


@pytest.mark.parametrize("version", ["1.2.3", "1.2.2", "0.99.99"])
def test_versions_only_rise(tmp_path: Path, source: str, version: str) -> None:
    publish(tmp_path, version=version)
    updater = an_updater(tmp_path, source)
    assert updater.look() is None
    assert updater.ready is None


def test_versions_are_numbers_and_not_words() -> None:
    assert is_newer("1.10.0", "1.9.9")
    assert not is_newer("1.9.9", "1.10.0")


def test_one_that_no_longer_speaks_the_protocol_waits(tmp_path: Path, source: str) -> None:
    publish(tmp_path, protocol=PROTOCOL + 1)
    updater = an_updater(tmp_path, source)
    assert updater.look() is None
    assert updater.look(protocol=None) is not None  # the network has gone on


def test_what_another_key_signed_is_refused(tmp_path: Path, source: str) -> None:
    publish(tmp_path, key=Identity.create())
    with pytest.raises(ReleaseError, match=r"is signed by .*, not by"):
        an_updater(tmp_path, source).look()


def test_a_changed_release_and_a_changed_wheel_are_refused(tmp_path: Path, source: str) -> None:
    wheel, updater = publish(tmp_path), an_updater(tmp_path, source)
    good = wheel.read_bytes()
    wheel.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    with pytest.raises(ReleaseError, match="is not the file that release"):
        updater.look()
    wheel.write_bytes(good + b"x")
    with pytest.raises(ReleaseError, match="larger than it may be"):
        updater.look()
    signed = tmp_path / "releases" / ENVELOPE
    signed.write_bytes(signed.read_bytes()[:-1] + b"\0")
    with pytest.raises(ReleaseError, match="is false"):
        updater.look()
    signed.unlink()
    with pytest.raises(ReleaseError, match="answered 404"):
        updater.look()
    assert updater.ready is None
    assert not (tmp_path / "updates").exists()


def test_a_source_is_https_or_this_machine(tmp_path: Path) -> None:
    with pytest.raises(ReleaseError, match="could be changed on its way"):
        an_updater(tmp_path, "http://releases.example").look()


def test_without_a_release_key_it_is_refused_and_said() -> None:
    with pytest.raises(ReleaseError, match=r"without a release key.*Leave --auto-update out"):
        shipped()
    done = subprocess.run(
        [sys.executable, "-m", "echo_node.cli", "join", "--auto-update"],
        capture_output=True, text=True, timeout=120, env={**os.environ, "COLUMNS": "200"},
    )  # fmt: skip
    assert done.returncode == 2
    assert "made without a release key" in done.stderr


def test_a_release_is_installed_into_its_environment_and_tried_once(
    tmp_path: Path, source: str
) -> None:
    venv.create(tmp_path / "env", with_pip=True)
    publish(tmp_path)
    updater = an_updater(tmp_path, source, prefix=tmp_path / "env")
    assert updater.look() is not None
    updater.install()
    said = subprocess.run(
        [tmp_path / "env" / "bin" / "python", "-c",
         "import importlib.metadata; print(importlib.metadata.version('echo-p2p'))"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert said.stdout.strip() == NEWER
    assert not (tmp_path / "updates").exists()
    assert an_updater(tmp_path, source).look() is None  # also where the installer did nothing


def test_each_installer_is_asked_in_its_own_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = tmp_path / "w.whl"
    (tmp_path / "pipx_metadata.json").write_text("{}")
    assert install_command(tmp_path, wheel)[:4] == ["pipx", "runpip", "echo-p2p", "install"]
    (tmp_path / "pipx_metadata.json").unlink()
    (tmp_path / "uv-receipt.toml").write_text("")
    assert install_command(tmp_path, wheel)[:3] == ["uv", "pip", "install"]
    (tmp_path / "uv-receipt.toml").unlink()
    assert install_command(tmp_path, wheel)[1:4] == ["-m", "pip", "install"]
    monkeypatch.setattr(update, "editable_source", lambda: "/src/echo")
    with pytest.raises(ReleaseError, match="runs from its source in /src/echo"):
        install_command(Path(sys.prefix), wheel)


def test_the_program_becomes_the_new_one_before_it_joins(
    tmp_path: Path, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(tmp_path)
    done: list[str] = []
    monkeypatch.setattr(Updater, "install", lambda self: done.append("install"))
    monkeypatch.setattr(update, "restart", lambda: done.append("restart"))
    join_command._upgrade(an_updater(tmp_path, source), PROTOCOL)
    assert done == ["install", "restart"]
    publish(tmp_path, key=Identity.create())  # what is not trusted keeps nobody from joining
    join_command._upgrade(an_updater(tmp_path, source), PROTOCOL)
    assert done == ["install", "restart"]


def test_is_wanted_says_no_to_the_same() -> None:
    same = Release(
        version="1.0.0", protocol=1, wheel="echo_p2p-1.0.0.whl", size=1, sha256=bytes(32), at=0.0
    )
    assert not is_wanted(same, ours="1.0.0", protocol=2)
    assert release.FILE_NAME == "release.toml"
