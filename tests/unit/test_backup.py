"""`echo-hub backup` and `restore`: one moment of a run, whole, and only as it was."""

from __future__ import annotations

import json
import shutil
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from echo_hub.backups.backup import backup_run
from echo_hub.backups.contents import INDEX, read_index
from echo_hub.backups.restore import restore_run
from echo_hub.commands.setup_run import init_run
from echo_hub.config import load_config
from echo_hub.ledger.ledger import Ledger, read_facts
from echo_hub.paths import RunFolder
from echo_p2p.errors import ConfigError, LedgerError
from echo_p2p.identity import Identity


def checkpoint(folder: RunFolder, version: int) -> None:
    """A folder as the learner leaves one; its files name the version."""
    out = folder.checkpoint(version)
    draft = out.with_name(f".{out.name}.draft")
    (draft / "adapter").mkdir(parents=True)
    (draft / "adapter" / "adapter_config.json").write_text(f"{version}")
    (draft / "state.safetensors").write_bytes(b"%d" % version * 1000)
    files = dict.fromkeys(["adapter/adapter_config.json", "state.safetensors"], "")
    meta = {"format": 1, "version": version, "facts": {"batch": [1], "guard": {}}, "sha256": files}
    (draft / "state.json").write_text(json.dumps(meta))
    draft.rename(out)


def in_ledger(folder: RunFolder, body: Callable[[Ledger], Any], run_id: str = "my-run") -> None:
    async def main() -> None:
        async with Ledger.open(folder.ledger, run_id) as ledger:
            await body(ledger)

    trio.run(main)


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """A run at version 2, with a task of the operator's inside and another file outside."""
    folder = init_run(
        tmp_path / "run", run_id="my-run", model="addmix3", hosts=[], port=42420, local_demo=False
    )
    (folder.root / "base").mkdir()
    (folder.root / "base" / "config.json").write_text("{}")
    (folder.root / "task.py").write_text("prompt = reward = None\n")
    (tmp_path / "kept.json").write_text("{}")
    text = folder.config.read_text()
    text = text.replace('path = "addmix3"', f'path = "{folder.root}/base"  # mine')
    text = text.replace('name = "addmix3"', f'name = "file:{folder.root}/task.py:Task"')
    text = text.replace('kept = ""', f'kept = "{tmp_path}/kept.json"')
    folder.config.write_text(text)

    async def fill(ledger: Ledger) -> None:
        await ledger.begin()
        for version in range(3):
            checkpoint(folder, version)
        for version in (1, 2):
            await ledger.commit_update(version, [], {})

    folder.checkpoints.mkdir()
    in_ledger(folder, fill)
    checkpoint(folder, 3)  # made, and not yet in the ledger
    (folder.root / "store").mkdir()
    (folder.root / "store" / "chunk").write_bytes(b"x" * 100)
    return folder


def test_a_backup_is_restored_elsewhere(run: RunFolder, tmp_path: Path) -> None:
    made = backup_run(run.root, tmp_path / "copy")
    assert (made.version, made.outside) == (2, [str(tmp_path / "kept.json")])
    assert stat.S_IMODE(made.out.stat().st_mode) == 0o700
    names = set(read_index(made.out).files)
    assert {"identity.pem", "directory.key", "ledger.sqlite", "base/config.json"} <= names
    assert not {name for name in names if name.startswith(("store", "checkpoints/v000003", "."))}
    assert not list(run.root.glob(".backup-*"))

    shutil.move(run.root, tmp_path / "gone")
    done = restore_run(made.out, tmp_path / "else" / "where")
    new = RunFolder(done.folder)
    assert (done.run, done.version, done.missing) == ("my-run", 2, [])
    for key in (new.identity, new.directory_key, new.ledger):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert Identity.load(new.identity) == Identity.load(tmp_path / "gone" / "identity.pem")
    assert read_facts(new.ledger)["version"] == 2
    assert new.kept() == {0, 1, 2}
    config = load_config(new.config)
    assert config.base.path == f"{new.root}/base"
    assert config.task.name == f"file:{new.root}/task.py:Task"
    assert config.task.kept == f"{tmp_path}/kept.json"
    assert "# mine" in new.config.read_text()
    in_ledger(new, lambda ledger: ledger.commit_update(3, [], {}))


def test_a_lost_end_of_the_run_is_stepped_over(run: RunFolder, tmp_path: Path) -> None:
    made = backup_run(run.root, tmp_path / "copy")
    with pytest.raises(ConfigError, match="not before 2"):
        restore_run(made.out, tmp_path / "new", after=2)
    done = restore_run(made.out, tmp_path / "new", after=40)
    new = RunFolder(done.folder)
    assert done.version == 41
    state = msgspec.json.decode((new.checkpoint(41) / "state.json").read_bytes())
    assert (state["version"], state["facts"]["batch"]) == (41, [])
    assert (new.adapter(41) / "adapter_config.json").read_text() == "2"

    async def body(ledger: Ledger) -> None:
        recovered = await ledger.recover()
        assert recovered.version == 41
        assert recovered.guard.withdrawn == frozenset(range(3, 41))
        assert recovered.guard.batch == frozenset()

    in_ledger(new, body)


def test_a_run_that_was_never_served(tmp_path: Path) -> None:
    init_run(
        tmp_path / "run", run_id="my-run", model="addmix3", hosts=[], port=42420, local_demo=False
    )
    made = backup_run(tmp_path / "run", tmp_path / "copy")
    assert made.version is None
    assert restore_run(made.out, tmp_path / "new").version is None


_SOME_FILE = {"bytes": 1, "blake3": "00"}


def _edit_index(backup: Path, change: Callable[[dict[str, Any]], None]) -> None:
    index = json.loads((backup / INDEX).read_text())
    change(index)
    (backup / INDEX).write_text(json.dumps(index))


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (lambda b: (b / "checkpoints/v000002/state.json").write_text("{}"), "not as it was"),
        (lambda b: (b / "checkpoints/v000002/state.safetensors").write_bytes(b"x" * 1000), "not"),
        (lambda b: (b / "ledger.sqlite").unlink(), r"ledger\.sqlite is missing"),
        (lambda b: (b / INDEX).unlink(), "is no backup"),
        (lambda b: (b / INDEX).write_text("{}"), "is damaged"),
        (lambda b: _edit_index(b, lambda i: i.update(format=9)), "has format 9"),
        (lambda b: _edit_index(b, lambda i: i.update(run="other")), "says that it is of other"),
        (
            lambda b: _edit_index(b, lambda i: i["files"].update({"../x": _SOME_FILE})),
            r"names the file '\.\./x'",
        ),
        (
            lambda b: _edit_index(b, lambda i: i["files"].update({"/x": _SOME_FILE})),
            "names the file '/x'",
        ),
    ],
)
def test_a_damaged_backup_is_refused_whole(
    run: RunFolder, tmp_path: Path, harm: Callable[[Path], object], says: str
) -> None:
    made = backup_run(run.root, tmp_path / "copy")
    harm(made.out)
    with pytest.raises(ConfigError, match=says):
        restore_run(made.out, tmp_path / "new")
    assert not (tmp_path / "new").exists()
    assert not list(tmp_path.glob(".new*"))


def test_nothing_is_overwritten(run: RunFolder, tmp_path: Path) -> None:
    made = backup_run(run.root, tmp_path / "copy")
    with pytest.raises(ConfigError, match="there already"):
        backup_run(run.root, made.out)
    with pytest.raises(ConfigError, match="overwrites nothing"):
        restore_run(made.out, run.root)
    with pytest.raises(ConfigError, match="in the run itself"):
        backup_run(run.root, run.root / "copy")


def test_a_damaged_ledger_is_not_backed_up(run: RunFolder, tmp_path: Path) -> None:
    data = bytearray(run.ledger.read_bytes())
    data[4096 * 2 : 4096 * 4] = b"\xff" * 8192
    run.ledger.write_bytes(data)
    with pytest.raises(LedgerError):
        backup_run(run.root, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_a_checkpoint_that_is_gone_is_said(run: RunFolder, tmp_path: Path) -> None:
    shutil.rmtree(run.checkpoint(2))
    with pytest.raises(ConfigError, match="no checkpoint of the ledger's version 2"):
        backup_run(run.root, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_a_hub_that_goes_on_meanwhile(run: RunFolder, tmp_path: Path) -> None:
    """Versions are made and old ones deleted as fast as the disk allows; every backup is whole."""
    stop = threading.Event()

    async def body(ledger: Ledger) -> None:
        version = 2
        while not stop.is_set():
            version += 1
            if not run.checkpoint(version).exists():
                checkpoint(run, version)
            await ledger.commit_update(version, [], {})
            shutil.rmtree(run.checkpoint(version - 3), ignore_errors=True)

    hub = threading.Thread(target=in_ledger, args=(run, body))
    hub.start()
    try:
        versions = []
        for number in range(8):
            made = backup_run(run.root, tmp_path / f"copy-{number}")
            done = restore_run(made.out, tmp_path / f"new-{number}")
            new = RunFolder(done.folder)
            assert made.version is not None
            assert read_facts(new.ledger)["version"] == made.version
            for kept in new.kept():
                meta = json.loads((new.checkpoint(kept) / "state.json").read_text())
                assert meta["version"] == kept <= made.version
                assert (new.adapter(kept) / "adapter_config.json").read_text() == f"{kept}"
            versions.append(made.version)
    finally:
        stop.set()
        hub.join()
    assert versions == sorted(versions)
    assert versions[-1] > versions[0]
