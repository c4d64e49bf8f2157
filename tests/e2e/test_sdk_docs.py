"""docs/sdk.md: every example is run as it stands there, and checked as strictly as can be."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs" / "sdk.md"
BLOCKS = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
LOCAL = [block for block in BLOCKS if "Hub.local(" in block]
SMALL = {"learner": {"groups_per_update": 4}}
# what stands before each: where it writes, and updates of 32 rollouts in place of 256
BEFORE = """import functools, tempfile, echo_hub
tempfile.tempdir = {scratch!r}
echo_hub.Hub.local = staticmethod(functools.partial(echo_hub.Hub.local, settings={small!r}))
"""


def run(folder: Path, text: str) -> str:
    (folder / "example.py").write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "example.py"], cwd=folder, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def no_process_is_left(folder: Path) -> bool:
    """Nothing runs any more whose command line names a run in this folder."""
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(folder) in entry.read_bytes().decode(errors="replace"):
                return False
        except OSError:
            continue
    return True


def test_there_is_an_example_of_each_level() -> None:
    assert len(LOCAL) == 4
    assert sum("HubClient(" in block for block in BLOCKS) == 2


@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", range(len(LOCAL)))
def test_the_examples_run(tmp_path: Path, number: int) -> None:
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    text = LOCAL[number]
    done = run(tmp_path, BEFORE.format(scratch=str(scratch), small=SMALL) + text)
    assert not list(scratch.iterdir()), "a run without a folder of its own is gone afterwards"
    assert no_process_is_left(scratch)
    if "print(f" in text:
        assert re.search(r"version 2: reward \d", done)


def test_pyright_finds_nothing_in_them(tmp_path: Path) -> None:
    checker = shutil.which("basedpyright", path=str(Path(sys.executable).parent))
    if checker is None:
        pytest.skip("basedpyright is not installed")
    for number, text in enumerate(BLOCKS):
        (tmp_path / f"example_{number}.py").write_text(text, encoding="utf-8")
    root = DOCS.parents[1]
    settings = {
        "typeCheckingMode": "strict",
        "pythonVersion": "3.11",
        "venvPath": str(Path(sys.prefix).parent),
        "venv": Path(sys.prefix).name,
        "extraPaths": [str(root), str(root / "hub"), str(root / "node")],
        "include": ["*.py"],
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    done = subprocess.run(
        [checker, "--outputjson"], cwd=tmp_path, capture_output=True, text=True, timeout=300,
        env=os.environ,
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert found["summary"]["filesAnalyzed"] == len(BLOCKS)
    problems = [
        f"{Path(one['file']).name}:{one['range']['start']['line'] + 1} {one['message']}"
        for one in found["generalDiagnostics"]
        if one["severity"] == "error"
    ]
    assert not problems, "\n".join(problems)
