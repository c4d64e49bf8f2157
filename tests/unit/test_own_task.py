"""An own task: a file, a module, or a class in one; and all that may be wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from echo_hub.config import TaskSection
from echo_hub.tasks import make_task
from echo_p2p.errors import ConfigError

WHOLE = """
from echo_hub.tasks import Prompt

def prompt(split, index):
    return Prompt(f"{split} {index}")

def reward(prompt, answer):
    return float(answer == prompt.text)
"""
CLASSES = """
from dataclasses import dataclass
from echo_hub.tasks import Prompt
from beside import WORD

class Plain:
    def prompt(self, split, index):
        return Prompt(WORD)

    def reward(self, prompt, answer):
        return 1.0

@dataclass
class Made(Plain):
    options: dict
    seed: int

def fails(seed):
    raise ValueError("not today")

class Halves:
    def prompt(self, split, index):
        return Prompt("?")

NOTHING = None
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "whole.py").write_text(WHOLE)
    (tmp_path / "classes.py").write_text(CLASSES)
    (tmp_path / "beside.py").write_text("WORD = 'word'")
    (tmp_path / "leaves.py").write_text("raise SystemExit(3)")
    (tmp_path / "broken.py").write_text("import nothing_of_that_name")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_a_file_with_two_functions_is_a_task(folder: Path) -> None:
    for name in ("file:whole.py", f"file:{folder}/whole.py", "module:whole"):
        task = make_task(name, {}, 0)
        prompt = task.prompt("train", 3)
        assert prompt.text == "train 3"
        assert task.reward(prompt, "train 3") == 1.0  # type: ignore[arg-type]


@pytest.mark.parametrize("place", ["file:classes.py", "module:classes"])
def test_a_class_in_it_gets_what_it_takes(folder: Path, place: str) -> None:
    assert make_task(f"{place}:Plain", {}, 0).prompt("train", 0).text == "word"
    made = make_task(f"{place}:Made", {"a": 1}, 7)
    assert (made.options, made.seed) == ({"a": 1}, 7)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("name", "options", "why"),
    [
        ("file:absent.py", {}, "absent.py, which is no file"),
        ("file:whole.py", {"a": 1}, "takes no options, so not a"),
        ("file:classes.py:Plain", {"a": 1}, "Plain takes no options"),
        ("file:classes.py", {}, r"no prompt and no reward. A task has prompt\(split, index\)"),
        ("file:classes.py:Halves", {}, "has no reward"),
        ("file:classes.py:NOTHING", {}, "no class or function 'NOTHING'"),
        ("file:classes.py:Absent", {}, "no class or function 'Absent'"),
        ("file:classes.py:fails", {}, "cannot be made: ValueError: not today"),
        ("file:broken.py", {}, "cannot be loaded: ModuleNotFoundError: No module named"),
        ("file:leaves.py", {}, "cannot be loaded: SystemExit: 3"),
        ("module:", {}, "the module '', which cannot be imported"),
        ("module:nothing_of_that_name", {}, "cannot be loaded"),
    ],
)
def test_what_is_wrong_with_one(folder: Path, name: str, options: dict[str, int], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        make_task(name, options, 0)


@pytest.mark.parametrize("name", ["file:/home/me/my_task.py", "file:my_task.py:Mine"])
def test_nodes_do_not_learn_where_a_file_lies(name: str) -> None:
    assert TaskSection(name=name).called == "file:my_task"
