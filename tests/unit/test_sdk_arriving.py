"""An export that arrives over the network becomes a folder, or nothing."""

from __future__ import annotations

import io
import zipfile
from contextlib import closing
from pathlib import Path

import pytest

from echo_hub.sdk.arriving import Arriving
from echo_p2p.errors import ConfigError, NetError


def archive(**members: bytes) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as one:
        for name, data in members.items():
            one.writestr(name, data)
    return made.getvalue()


def unpacked(data: bytes, out: Path) -> Path:
    with closing(Arriving(out)) as arriving:
        for at in range(0, len(data), 100):
            arriving.write(data[at : at + 100])
        return arriving.unpack()


def test_an_export_becomes_a_folder(tmp_path: Path) -> None:
    data = archive(**{"run-v1/README.md": b"card", "run-v1/model": bytes(3_000_000)})
    out = unpacked(data, tmp_path / "new" / "out")
    assert {one.name: one.stat().st_size for one in out.iterdir()} == {
        "README.md": 4,
        "model": 3_000_000,
    }


@pytest.mark.parametrize("name", ["../evil", "/evil", "a/../../evil", "C:\\evil", "a/.."])
def test_nothing_is_written_elsewhere(tmp_path: Path, name: str) -> None:
    try:
        unpacked(archive(**{"run/good": b"x", name: b"x"}), tmp_path / "box" / "out")
    except NetError:
        assert not (tmp_path / "box").exists()
    assert {one for one in tmp_path.rglob("*") if one.is_file()} <= {
        tmp_path / "box" / "out" / "good",
        tmp_path / "box" / "out" / "evil",
    }


@pytest.mark.parametrize("data", [b"", b"no archive", archive(**{"run/good": b"x" * 500})[:-30]])
def test_what_is_no_archive_leaves_nothing(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(NetError, match="no archive"):
        unpacked(data, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_holds_anything_is_refused_before_anything_is_asked(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    with pytest.raises(ConfigError, match="there already"):
        Arriving(tmp_path)
