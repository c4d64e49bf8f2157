"""docs/tasks.md, "Your own, from an empty file": its code and its command, as they stand there."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from echo_hub.tasks import make_task

DOCS = Path(__file__).parents[2] / "docs" / "tasks.md"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder in which what the docs say to do was done."""
    (tmp_path / "carries.py").write_text(block("python"))
    return tmp_path


def block(language: str) -> str:
    section = DOCS.read_text(encoding="utf-8").partition("## Your own, from an empty file")[2]
    found = re.search(rf"```{language}\n(.*?)```", section, re.DOTALL)
    assert found
    return found[1]


def test_the_file_is_a_task_of_twenty_lines(folder: Path) -> None:
    assert len([line for line in block("python").splitlines() if line.strip()]) <= 20
    task = make_task(f"file:{folder}/carries.py", {}, 0)
    texts = {}
    for split in ("train", "heldout"):
        prompts = [task.prompt(split, index) for index in range(200)]  # type: ignore[arg-type]
        texts[split] = {prompt.text for prompt in prompts}
        for prompt in prompts:
            a, b = prompt.text.rstrip("=").split("+")
            assert int(a) % 10 + int(b) % 10 >= 10
            assert task.reward(prompt, f"x>{int(a) + int(b)}") == 1.0  # type: ignore[arg-type]
            assert task.reward(prompt, f"x>{int(a) + int(b) - 10}") == 0.0  # type: ignore[arg-type]
    assert not texts["train"] & texts["heldout"]


@pytest.mark.slow
def test_its_reward_rises(folder: Path) -> None:
    program, *arguments = shlex.split(block("sh"))
    assert program == "echo-hub"
    done = subprocess.run(
        [sys.executable, "-m", "echo_hub.cli", *arguments, "--json"],
        cwd=folder, env=os.environ, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["reward_after"] > summary["reward_before"] + 0.2
    assert summary["nodes_banned"] == 0
